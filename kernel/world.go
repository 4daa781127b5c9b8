package kernel

import (
	"context"
	"log/slog"
	"time"

	"github.com/fairlead-cni/fairlead/kernel/record"
	"golang.org/x/sys/unix"
)

// turnBound is how long a call waits for its turn.
const turnBound = time.Second

// Turn is Lock where the lock only keeps callers in order, and nothing goes wrong without it. After a second, and where
// there can be no lock, the caller goes on without: a process that was stopped keeps its locks. A caller that has
// waited in vain does not wait again, until it has found the lock free.
func (ns *NS) Turn(ctx context.Context, name string) (done func(), err error) {
	bound := turnBound
	if ns.overdue.Load() {
		bound = 0
	}
	done, err = record.LockWithin(ctx, bound, name, unix.LOCK_EX)
	if err != nil && ctx.Err() == nil {
		if !ns.overdue.Swap(true) {
			slog.Warn("going on without a lock that only keeps calls in order", "cause", err)
		}
		return func() {}, nil
	}
	ns.overdue.Store(err != nil)
	return done, err
}

// A World is what one call can reach: the host's namespace, the container's (nil where there is none),
// and what was remembered of former calls.
type World struct {
	Host      *NS
	Container *NS
	Store     record.Store
}

// Close closes both namespaces.
func (w *World) Close() {
	w.Host.Close()
	w.Container.Close()
}
