package routing

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

const changeRecord = "changes"

// A changed is the record of an owner's Changes, in order.
type changed struct {
	NS      kernel.Identity
	Path    string
	Entries []changeEntry
}

type changeEntry struct {
	Key        string
	Made, Gone []rtnl.Message
}

// recallChanges returns the owner's record if it is for this namespace.
func recallChanges(w *kernel.World, o spec.Owner, ns *kernel.NS) (rec changed, err error) {
	known, err := w.Store.Get(changeRecord, o, &rec)
	if err == nil && known {
		if known, err = ns.Is(rec.NS); known || err != nil {
			return rec, err
		}
	}
	if err != nil {
		return rec, err
	}
	id, err := ns.Identity()
	return changed{NS: id, Path: ns.Path}, err
}

func (rec changed) remember(w *kernel.World, o spec.Owner) error {
	if len(rec.Entries) == 0 {
		return w.Store.Delete(changeRecord, o)
	}
	return w.Store.Put(changeRecord, o, rec)
}

func (rec changed) find(key string) int {
	return slices.IndexFunc(rec.Entries, func(e changeEntry) bool { return e.Key == key })
}

// made reports whether a Change of the same owner has created the object of a message.
func (rec changed) made(m rtnl.Message) bool {
	return slices.ContainsFunc(rec.Entries, func(e changeEntry) bool {
		return slices.ContainsFunc(e.Made, func(mine rtnl.Message) bool { return sameMessage(mine, m) })
	})
}

// sameMessage reports whether the kernel treats two messages as the same object. The kernel fills in missing
// attributes.
func sameMessage(a, b rtnl.Message) bool {
	if a.Type != b.Type {
		return false
	}
	switch a.Type {
	case unix.RTM_NEWROUTE:
		return slices.EqualFunc(a.Routes(), b.Routes(), func(x, y rtnl.Route) bool {
			x.Priority, y.Priority = metric(x), metric(y)
			return sameRoute(x, y) && x.Type == y.Type
		})
	case unix.RTM_NEWRULE:
		x, _ := a.Rule()
		y, _ := b.Rule()
		x.Protocol = y.Protocol
		return x == y
	}
	return a.Neighbour().Addr == b.Neighbour().Addr
}

func metric(r rtnl.Route) int { return addr.Route{Dst: r.Dst, Priority: r.Priority}.Metric() }

// removeChanges undoes the selected changes of an owner, last first.
func removeChanges(ctx context.Context, w *kernel.World, o spec.Owner, which func(changeEntry) bool) error {
	var rec changed
	known, err := w.Store.Get(changeRecord, o, &rec)
	if err != nil || !known {
		return err
	}
	ns, err := resource.Container.Namespace(w)
	if err == nil {
		var same bool
		if same, err = ns.Is(rec.NS); err == nil && !same {
			err = kernel.ErrNoNamespace // this one has its path, and is another container's
		}
	}
	if errors.Is(err, kernel.ErrNoNamespace) {
		return w.Store.Delete(changeRecord, o)
	}
	if err != nil {
		return err
	}
	unlock, err := lockSources(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	left, err := rec.undo(ns, which)
	return errors.Join(err, left.remember(w, o))
}

// undo is what is left of the record; what could not be undone stays in it.
func (rec changed) undo(ns *kernel.NS, which func(changeEntry) bool) (changed, error) {
	left := rec
	left.Entries = nil
	var errs []error
	for _, e := range slices.Backward(rec.Entries) {
		if which(e) {
			err := e.undo(ns)
			if errs = append(errs, err); err == nil {
				continue
			}
		}
		left.Entries = append([]changeEntry{e}, left.Entries...)
	}
	return left, errors.Join(errs...)
}

// undo undoes an entry, as far as it was applied.
func (e changeEntry) undo(ns *kernel.NS) error {
	var errs []error
	for _, m := range e.Made {
		errs = append(errs, rtnl.Drop(ns, m))
	}
	for _, m := range e.Gone {
		errs = append(errs, putBack(ns, m))
	}
	return errors.Join(errs...)
}

// nearer sorts routes to the link's own subnets first, because routes through a gateway need them.
func nearer(a, b rtnl.Message) int {
	far := func(m rtnl.Message) int {
		routed := func(r rtnl.Route) bool { return r.Via.IsValid() }
		if m.Type == unix.RTM_NEWROUTE && slices.ContainsFunc(m.Routes(), routed) {
			return 1
		}
		return 0
	}
	return far(a) - far(b)
}

// putBack restores the object of a message. It skips an object whose place is taken, and one that is no longer
// possible: a route whose gateway cannot be reached any more, or whose source address is gone.
func putBack(ns *kernel.NS, m rtnl.Message) error {
	if m.Type != unix.RTM_NEWROUTE {
		if n := m.Neighbour(); m.Type == unix.RTM_NEWNEIGH && n.State&(rtnl.Permanent|rtnl.NoARP) == 0 {
			return nil // the kernel learns it again
		}
		if err := rtnl.Make(ns, m, rtnl.Exclusive); err != nil && !errors.Is(err, fs.ErrExist) && !unreachable(err) {
			return err
		}
		return nil
	}
	hops := m.Routes()
	if len(hops) == 0 {
		return nil
	}
	r := hops[0]
	if r.Protocol == rtnl.ByKernel && len(hops) == 1 {
		addrs, err := rtnl.Addrs(ns, r.Link)
		if err != nil && !unreachable(err) {
			return err
		}
		if !slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix.Masked() == r.Dst }) {
			return nil
		}
	}
	err := rtnl.Make(ns, m, rtnl.Exclusive)
	if errors.Is(err, fs.ErrExist) {
		list, lerr := rtnl.RouteMessages(ns, rtnl.RouteFilter{Family: rtnl.Family(r.Dst.Addr()), Table: r.Table})
		if lerr != nil {
			return lerr
		}
		if slices.ContainsFunc(list, func(have rtnl.Message) bool {
			h := have.Routes()[0]
			return h.Dst == r.Dst && h.Priority == r.Priority && (h.Link != r.Link || sameMessage(have, m))
		}) {
			return nil
		}
		err = rtnl.Make(ns, m, rtnl.Beside)
	}
	if unreachable(err) {
		slog.Info("a route is not put back, for the link cannot have it any more", "route", said(ns, r), "err", err)
		return nil
	}
	return err
}

// unlessTaken returns the routes that no later Change of the same owner has deleted (P16).
func unlessTaken(w *kernel.World, o spec.Owner, ns *kernel.NS, routes []rtnl.Route) ([]rtnl.Route, error) {
	rec, err := recallChanges(w, o, ns)
	for _, e := range rec.Entries {
		for _, m := range e.Gone {
			if m.Type != unix.RTM_NEWROUTE {
				continue
			}
			for _, h := range m.Routes() {
				routes = slices.DeleteFunc(slices.Clone(routes), func(r rtnl.Route) bool {
					return r.Dst == h.Dst && r.Via == h.Via && r.Link == h.Link && r.Table == h.Table
				})
			}
		}
	}
	return routes, err
}
