package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// A keeper keeps one lease: it renews it, changes the address on the link if the servers do, and ends with the
// namespace or the link. While it waits, it holds nothing of the namespace open, so that the namespace can end.
type keeper struct {
	d     *Daemon
	proto dhcp.Protocol
	at    key

	cancel context.CancelFunc
	done   chan struct{} // closed when run has returned
	wake   chan struct{}

	mu      sync.Mutex
	rec     leaseFile
	number  int   // of the namespace, in the daemon's; -1: unknown
	up      bool  // the link carried packets when it was last heard of
	confirm bool  // ask whether the lease still holds
	look    bool  // the namespace or the link may be gone
	died    bool  // the namespace is, says the kernel
	trouble error // why the last try failed
	lost    error // why there is no valid lease; nil: there is
	tries   int   // in vain, since the lease was lost
	puts    int   // of the lease on the link, in vain
	told    bool  // the kernel was told for how long the addresses are preferred, while nothing else is to be done
}

// A phase is the next task of a keeper.
type phase int

const (
	confirming phase = iota
	renewing
	rebinding
	expiring
	acquiring
	placing
	deprecating
)

// maxPuts limits how often the daemon tries to put a lease on the link before it renews the lease.
const maxPuts = 5

func (p phase) String() string {
	return [...]string{"confirm", "renew", "rebind", "expire", "acquire", "place", "deprecate"}[p]
}

// next returns the phase, when it begins, which may be in the past, and when it ends.
func (k *keeper) next(now time.Time) (p phase, begin, end time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.rec.Lease
	at := func(d time.Duration) time.Time {
		if d == dhcp.Forever {
			return now.Add(24 * 365 * time.Hour) // and then it is asked again
		}
		return l.Asked.Add(d)
	}
	switch {
	case k.lost != nil:
		return acquiring, now, time.Time{}
	case !now.Before(at(l.Valid)):
		return expiring, now, time.Time{}
	case k.confirm:
		return confirming, now, at(l.Valid)
	case !now.Before(at(l.T2)):
		return rebinding, at(l.T2), at(l.Valid)
	case k.rec.Was != nil && k.puts < maxPuts && now.Before(at(min(l.T1, l.Valid))):
		return placing, now, at(min(l.T1, l.Valid)) // whose answer has it tried again
	}
	renew := min(l.T1, l.Valid)
	if p := preferred(l); p < renew && !k.told { // once the interface plugin has put them on the link
		return deprecating, at(max(p/2, settling)), at(renew)
	}
	// A server may want not to be asked, and yet the lease ends.
	return renewing, at(renew), at(min(l.T2, l.Valid))
}

// pause returns the time to wait after a failed try: half of the rest of the phase (RFC 2131, 4.4.5), within limits
// that depend on the lifetime.
func pause(left, valid time.Duration) time.Duration {
	least := min(max(valid/32, time.Second), time.Minute)
	return max(left/2, least)
}

// again returns the time to wait between tries to get a new lease.
func again(tries int) time.Duration { return min(time.Second<<min(tries, 6), time.Minute) }

// run keeps the lease until ctx ends or the lease is no longer needed. The first try is at retry.
func (k *keeper) run(ctx context.Context, retry time.Time) {
	defer close(k.done)
	for ctx.Err() == nil {
		now := time.Now()
		p, begin, end := k.next(now)
		if begin.Before(retry) {
			begin = retry
		}
		if !end.IsZero() && begin.After(end) {
			begin = end // the next phase has another way to try
		}
		if wait := begin.Sub(now); wait > 0 {
			t := time.NewTimer(wait)
			select {
			case <-ctx.Done():
			case <-t.C:
			case <-k.wake:
				if k.handlePending(ctx) {
					retry = time.Time{}
				}
			}
			t.Stop()
			continue
		}
		err := k.step(ctx, p, end)
		switch {
		case ctx.Err() != nil:
			return
		// there is nothing left to keep
		case errors.Is(err, errGone), errors.Is(err, errHidden) && (p == expiring || p == acquiring):
			k.d.drop(k, err)
			return
		}
		retry = k.after(p, end, err)
	}
}

// handlePending handles an event of the namespace, and reports whether the keeper must act at once.
func (k *keeper) handlePending(ctx context.Context) bool {
	k.mu.Lock()
	look := k.look
	k.look = false
	now := k.confirm
	k.mu.Unlock()
	if look {
		if link, err := k.reach(); err == nil {
			link.NS.Close()
		} else if errors.Is(err, errGone) && ctx.Err() == nil {
			k.mu.Lock()
			k.look = true // run's next step finds the same
			k.confirm = true
			k.mu.Unlock()
			return true
		}
	}
	return now
}

// step performs the task of a phase once.
func (k *keeper) step(ctx context.Context, p phase, end time.Time) (err error) {
	defer guard(p.String()+" a lease", &err)
	k.mu.Lock()
	rec := k.rec
	k.mu.Unlock()
	link, err := k.reach()
	if err != nil {
		return err
	}
	defer link.NS.Close()
	if !rec.Placed && rec.Protocol != dhcp.SLAAC && on(link, rec.Lease) {
		k.mu.Lock()
		k.rec.Placed = true
		k.mu.Unlock()
	}
	prefer(link, rec, rec.Lease)
	if p == deprecating {
		k.mu.Lock()
		k.told = true
		k.mu.Unlock()
		return nil
	}
	if p == expiring {
		k.lose(link, errors.New("the lease was not renewed in time"))
		return nil
	}
	if !link.up {
		return fmt.Errorf("link %s is down", link.Name)
	}
	if p == placing {
		return k.place(link)
	}
	limit := k.d.Timeout
	if !end.IsZero() {
		limit = min(limit, max(time.Until(end), time.Second))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	got, err := k.ask(ctx, p, link, rec)
	if p == confirming && err != nil && !errors.Is(err, dhcp.ErrRefused) {
		k.mu.Lock()
		k.confirm = false // it is in force for as long as it is valid
		k.mu.Unlock()
	}
	switch {
	case err == nil:
		return k.bind(link, rec.Ask.Complete(got, link.MTU)) // its routes follow a change of the router
	case errors.Is(err, dhcp.ErrRefused) && p != acquiring:
		k.lose(link, err)
		return nil
	}
	return err
}

// ask asks the servers what a phase asks.
func (k *keeper) ask(ctx context.Context, p phase, link reached, rec leaseFile) (*dhcp.Lease, error) {
	switch p {
	case confirming:
		return k.proto.Confirm(ctx, link.Link, rec.Ask, rec.Lease)
	case renewing:
		return k.proto.Renew(ctx, link.Link, rec.Ask, rec.Lease)
	case rebinding:
		return k.proto.Rebind(ctx, link.Link, rec.Ask, rec.Lease)
	case acquiring:
		return k.proto.Acquire(ctx, link.Link, rec.Ask)
	}
	return nil, nil
}

// after records the outcome of a step, and returns when the next one may start.
func (k *keeper) after(p phase, end time.Time, err error) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := fmt.Sprint(err) != fmt.Sprint(k.trouble)
	k.trouble = err
	if err == nil {
		k.tries = 0
		return time.Time{}
	}
	if p == placing {
		k.puts++
		return time.Now().Add(again(k.puts))
	}
	if changed {
		slog.Warn("no answer to a request for a lease",
			"to", p, "owner", k.rec.Ask.Owner, "protocol", k.rec.Protocol, "reason",
			err)
	}
	if p == acquiring {
		k.tries++
		return time.Now().Add(again(k.tries))
	}
	return time.Now().Add(pause(time.Until(end), k.rec.Lease.Valid))
}

// bind stores a new lease and puts it on the link. A lease that cannot be put on the link is kept and put there later.
func (k *keeper) bind(link reached, l *dhcp.Lease) error {
	k.mu.Lock()
	rec := k.rec
	k.mu.Unlock()
	k.put(link, rec, l)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost, k.confirm, k.puts, k.told = nil, false, 0, false
	return nil
}

// place puts the lease on the link after an earlier failure.
func (k *keeper) place(link reached) error {
	k.mu.Lock()
	rec := k.rec
	k.mu.Unlock()
	return k.put(link, rec, rec.Lease)
}

// put replaces the record's lease by l, on the link and on the disk. The error is that of the link.
func (k *keeper) put(link reached, rec leaseFile, l *dhcp.Lease) (err error) {
	old, from := rec.Lease, cmp.Or(rec.Was, rec.Lease)
	changed := rec.Off || rec.Was != nil || !old.SameConfiguration(l)
	rec.Lease = l
	if changed {
		must := rec.Off || rec.Was != nil || rec.Placed
		if err = exchange(link, from, l, rec.Metric, must); err != nil {
			slog.Error("put a changed lease on the link", "owner", rec.Ask.Owner, "link", link.Name, "error", err)
			if must {
				rec.Was = either(from, l)
			}
		} else {
			rec.Was, rec.Off = nil, false
		}
	}
	rec.Off = false
	rec.stamp()
	prefer(link, rec, old)
	// it is kept in memory, and the file has the times of the one before: nothing is lost but time
	if err := k.d.store.save(rec); err != nil {
		slog.Error("a renewed lease is not on the disk", "owner", rec.Ask.Owner, "error", err)
	}
	k.mu.Lock()
	k.rec = rec
	k.mu.Unlock()
	if changed && err == nil { // said when it is so, on the link and on the disk
		slog.Warn("a lease has changed", "owner", rec.Ask.Owner, "protocol", rec.Protocol, "link", link.Name, "was",
			from.Prefixes(), "is", l.Prefixes())
	}
	return err
}

// either returns a lease with everything that may be on a link that has one of the two leases, or parts of both. It
// keeps only the newest addresses, because servers may change their minds without end.
func either(a, b *dhcp.Lease) *dhcp.Lease {
	const most = 64
	l := *b
	l.Addresses, l.Routes = nil, nil
	for _, of := range []*dhcp.Lease{a, b} {
		for _, x := range of.Addresses {
			if !slices.ContainsFunc(l.Addresses, func(have dhcp.Address) bool { return have.Prefix == x.Prefix }) {
				l.Addresses = append(l.Addresses, x)
			}
		}
		for _, x := range of.Routes {
			if !slices.ContainsFunc(l.Routes, func(have spec.Route) bool { return reflect.DeepEqual(have, x) }) {
				l.Routes = append(l.Routes, x)
			}
		}
	}
	l.Addresses = l.Addresses[max(0, len(l.Addresses)-most):]
	l.Routes = l.Routes[max(0, len(l.Routes)-most):]
	return &l
}

// lose removes the addresses from the link, because the lease is no longer valid.
func (k *keeper) lose(link reached, why error) {
	k.mu.Lock()
	rec := k.rec
	k.mu.Unlock()
	was, err := takeOff(link, rec.Lease, rec.Was)
	if err != nil {
		slog.Error("take addresses off", "link", link.Name, "error", err)
	}
	slog.Error("a lease is over, and its addresses are taken off the link", "owner", rec.Ask.Owner, "protocol",
		rec.Protocol,
		"link", link.Name, "addresses", rec.Lease.Prefixes(), "reason", why)
	rec.Off = rec.Off || was || rec.Placed || rec.Was != nil // another program may have taken them off before
	// the file is that of a lease that is over, which its times say
	if err := k.d.store.save(rec); err != nil {
		slog.Error("that a lease is over is not on the disk", "owner", rec.Ask.Owner, "error", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rec, k.lost, k.confirm = rec, why, false
}

// stop ends run and waits for it. This takes at most as long as one message.
func (k *keeper) stop() {
	k.cancel()
	<-k.done
}

// receive receives an event from the watcher.
func (k *keeper) receive(ev rtnl.NamespaceEvent) {
	k.mu.Lock()
	switch {
	case ev.Lost:
		k.look = true
	case ev.Namespace != k.number:
		k.mu.Unlock()
		return
	case ev.Died:
		k.look, k.died = true, true
	case ev.Link != nil && ev.Link.Index == k.rec.Index:
		k.look = k.look || ev.Deleted
		if ev.Link.Operational && !k.up && !ev.Deleted {
			k.confirm = true // what it is plugged into may be another network now
		}
		k.up = ev.Link.Operational
	default:
		k.mu.Unlock()
		return
	}
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}
