package kernel

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fairlead-cni/fairlead/kernel/record"
)

// turnBound is how long a call waits for its turn behind others that go on.
const turnBound = 45 * time.Second

// Turn takes the lock of that name, for callers that only want to go one after the other. It is safe to go on without
// the lock. So Turn passes a stopped holder by after a second, and does not wait for one that it cannot see. It also
// returns if no lock can be made, and before all the time of ctx is gone. A caller that waited in vain does not wait
// again until it has found the lock free.
func (ns *NS) Turn(ctx context.Context, name string) (done func(), err error) {
	bound := turnBound
	if end, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(end)/2)
	}
	if ns.overdue.Load() {
		bound = 0
	}
	soon, stop := context.WithTimeout(ctx, bound)
	defer stop()
	held, err := record.Queue(soon, bound, name, false)
	if err != nil && ctx.Err() == nil {
		if !ns.overdue.Swap(true) {
			slog.Warn("going on without a lock that only keeps calls in order", "cause", err)
		}
		return func() {}, nil
	}
	ns.overdue.Store(err != nil)
	if err != nil {
		return nil, err
	}
	return held.Release, nil
}

// A World is what one call can reach: the host's namespace, the container's namespace (nil if the call has none), and
// the records of earlier calls.
type World struct {
	Host      *NS
	Container *NS
	Store     record.Store
}

// NewWorld returns a World without a container, with the records of this boot. Host may be nil: nothing is opened yet.
func NewWorld(host *NS) *World { return &World{Host: host, Store: record.Store{Dir: record.Dir}} }

// Finish finishes what changes of this call have left to the end, see NS.Later. It returns all errors.
func (w *World) Finish() error {
	if w == nil || w.Host == nil {
		return nil
	}
	w.Host.laterMu.Lock()
	later := w.Host.later
	w.Host.later = nil
	w.Host.laterMu.Unlock()

	var errs []error
	for _, fn := range later {
		errs = append(errs, fn())
	}
	return errors.Join(errs...)
}

// Close closes both namespaces.
func (w *World) Close() {
	w.Host.Close()
	w.Container.Close()
}
