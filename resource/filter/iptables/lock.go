package iptables

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/xtables"
	"golang.org/x/sys/unix"
)

// WithLock runs fn under a lock. What another program did to a table between fn's look and its change fails the
// change; then it is tried once more.
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

// WithOwnRules is WithLock for changes of an owner's own rules in a chain that stands. Nobody else adds or deletes
// them, so after a second it goes on without the lock, which a stopped process may hold.
func WithOwnRules(ctx context.Context, w *kernel.World, fn func() error) error {
	done, err := w.Host.Turn(ctx, "iptables")
	if err != nil {
		return err
	}
	defer done()
	return tryTwice(fn)
}
