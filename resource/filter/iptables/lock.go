package iptables

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/xtables"
	"golang.org/x/sys/unix"
)

// WithLock runs fn under a lock. If another program changes the table between fn's look and its change, the change
// fails and WithLock runs fn once more.
func WithLock(ctx context.Context, fn func() error) error {
	unlock, err := record.Lock(ctx, "iptables")
	if err != nil {
		return err
	}
	defer unlock()
	return tryTwice(fn)
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
// them. So after a second WithOwnRules continues without the lock, which a stopped process may hold.
func WithOwnRules(ctx context.Context, w *kernel.World, fn func() error) error {
	done, err := w.Host.Turn(ctx, "iptables")
	if err != nil {
		return err
	}
	defer done()
	return tryTwice(fn)
}
