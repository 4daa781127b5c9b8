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

// Turn takes the lock of that name like Lock, for callers that only want to go one after the other. It is safe to go
// on without the lock. So Turn returns after a second at most, and also if no lock can be made: a stopped process
// keeps its locks. A caller that waited in vain does not wait again until it has found the lock free.
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

// A World is what one call can reach: the host's namespace, the container's namespace (nil if the call has none), and
// the records of earlier calls.
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
