package iptables

import (
	"context"
	"errors"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"golang.org/x/sys/unix"
)

// lockBound is how long a call waits for one holder of the lock.
const lockBound = 45 * time.Second

// WithLock runs fn under a lock, with a context for its changes. If another program changes the table between fn's look
// and its change, the change fails and WithLock runs fn once more. A process that is stopped under the lock is passed
// by after a second. When it goes on, its next change fails, and it takes the lock again.
func WithLock(ctx context.Context, fn func(context.Context) error) error {
	for {
		held, err := record.Queue(ctx, lockBound, "iptables", true)
		if err != nil {
			return err
		}
		fenced := xtables.Fenced(ctx, held.Lost)
		err = tryTwice(func() error { return fn(fenced) })
		held.Release()
		if !errors.Is(err, xtables.ErrPassedBy) {
			return err
		}
	}
}

func tryTwice(fn func() error) error {
	err := fn()
	var failed *xtables.Error
	if errors.As(err, &failed) && failed.Line > 0 && !errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOENT) {
		err = fn()
	}
	return err
}

// WithOwnRules is WithLock for changes of an owner's own rules in an existing chain. No other caller adds or deletes
// them. So WithOwnRules goes on without the lock where it cannot have it.
func WithOwnRules(ctx context.Context, w *kernel.World, fn func(context.Context) error) error {
	done, err := w.Host.Turn(ctx, "iptables")
	if err != nil {
		return err
	}
	defer done()
	return tryTwice(func() error { return fn(ctx) })
}
