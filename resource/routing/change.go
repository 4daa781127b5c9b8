package routing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Change is what a command of ip(8), such as "ip route replace", does to routes, rules or neighbours of a container.
// What it makes and what it takes away is remembered before. Remove deletes the one and puts the other back.
type Change struct {
	Owner     spec.Owner
	Do        Verb
	Of        Subject
	Key       string // of the configuration, for errors
	Unchecked bool   // Verify says nothing: the container changes its routes by itself
}

// A Verb is ip(8)'s.
type Verb string

// The Verbs. Add fails where another is there, Replace takes that away; Del takes what is described, Flush all but what
// the interface cannot do without.
const (
	Add     Verb = "add"
	Replace Verb = "replace"
	Del     Verb = "del"
	Flush   Verb = "flush"
)

// A Subject is what a Change is about: a RouteEntry, a RuleEntry or a NeighbourEntry.
type Subject interface {
	kind() string
	String() string

	// list is all of the kind in the tables that the Change can be about, and message what Add makes.
	list(at site) ([]rtnl.Message, error)
	message(at site) rtnl.Message

	// selected are those that Del takes, and Flush; occupies those that leave no room for it; is reports that it is
	// there.
	selected(at site, m rtnl.Message, flush bool) bool
	occupies(at site, m rtnl.Message) bool
	is(at site, m rtnl.Message) bool

	// verify compares what Add or Replace has made.
	verify(ctx context.Context, w *kernel.World, at site) error
	said(at site, m rtnl.Message) string
}

// A site is where a Change is made.
type site struct {
	ns    *kernel.NS
	index int // of the link
	table int // the link's own: main, or that of its VRF
}

const changeRecord = "changes"

// changed is what is remembered of an owner's Changes, in their order.
type changed struct {
	NS      kernel.Identity
	Path    string
	Entries []changeEntry
}

type changeEntry struct {
	Key        string
	Made, Gone []rtnl.Message
}

// String is the command, without its first word, and where it is about.
func (c Change) String() string {
	where := "dev cont/" + c.Owner.IfName
	if _, ok := c.Of.(RuleEntry); ok {
		where = "in cont/"
	}
	return resource.Line(c.Of.kind(), string(c.Do), c.Of.String(), where, resource.Flag("unchecked", c.Unchecked))
}

// id tells the changes of an owner apart: one may be there twice, with others between.
func (c Change) id() string { return c.Key + " " + c.String() }

func (c Change) site(w *kernel.World) (at site, err error) {
	if at.ns, at.index, err = resource.Container.Index(w, c.Owner.IfName); err != nil {
		return at, err
	}
	vrf, err := resource.VRFOf(at.ns, at.index)
	at.table = rtnl.MainTable
	if vrf != nil {
		at.table = int(vrf.Data.Table)
	}
	return at, err
}

// recallChanges is what is remembered of the owner in this namespace.
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

// Ensure implements plan.Resource.
func (c Change) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	at, err := c.site(w)
	if err != nil {
		return false, err
	}
	if r, ok := c.Of.(RouteEntry); ok {
		if err := r.ready(ctx, at, c.Owner.IfName); err != nil {
			return false, err
		}
	}
	unlock, err := lockSources(ctx, at.ns)
	if err != nil {
		return false, err
	}
	defer unlock()
	rec, err := recallChanges(w, c.Owner, at.ns)
	if err != nil {
		return false, err
	}
	if i := rec.find(c.id()); i >= 0 {
		if c.verify(ctx, w, at, rec) == nil {
			return false, nil
		}
		if err := rec.Entries[i].takeBack(at.ns); err != nil { // of an ADD that was killed, or damaged since
			return false, err
		}
		rec.Entries = slices.Delete(rec.Entries, i, i+1)
	}
	e, err := c.compose(at)
	// of a flush it counts what was there, not what comes
	if err != nil || len(e.Made)+len(e.Gone) == 0 && c.Do != Flush {
		return false, err
	}
	was := rec
	rec.Entries = append(slices.Clone(rec.Entries), e)
	if err := rec.remember(w, c.Owner); err != nil {
		return false, err
	}
	if err := c.apply(at, e); err != nil {
		undone := e.takeBack(at.ns)
		if undone == nil {
			undone = was.remember(w, c.Owner)
		}
		return false, errors.Join(err, undone)
	}
	return true, nil
}

// compose is what is to be made and to be taken away, from what there is.
func (c Change) compose(at site) (e changeEntry, err error) {
	e.Key = c.id()
	list, err := c.Of.list(at)
	if err != nil {
		return e, err
	}
	there := false
	for _, m := range list {
		switch {
		case c.Do == Del || c.Do == Flush:
			if c.Of.selected(at, m, c.Do == Flush) {
				e.Gone = append(e.Gone, m)
			}
		case c.Of.is(at, m):
			there = true
		case !c.Of.occupies(at, m):
		case c.Do == Replace:
			e.Gone = append(e.Gone, m)
		default:
			return e, spec.Errorf(spec.CodeConfig,
				"%s: %s: there is %s already; \"action\": \"replace\" takes its place, "+
					"and DEL puts it back", c.Key, c.Of, c.Of.said(at, m))
		}
	}
	if (c.Do == Add || c.Do == Replace) && !there {
		e.Made = append(e.Made, c.Of.message(at))
	}
	slices.SortStableFunc(e.Gone, nearer)
	return e, nil
}

// apply takes away before it makes: both may be for one destination.
func (c Change) apply(at site, e changeEntry) error {
	gone := slices.Clone(e.Gone) // of two that differ in an attribute, the one without is asked for last: it means both
	slices.SortStableFunc(gone, func(a, b rtnl.Message) int { return cmp.Compare(len(b.Body), len(a.Body)) })
	for _, m := range gone {
		if err := rtnl.Drop(at.ns, m); err != nil {
			return fmt.Errorf("%s: delete %s: %w", c.Key, c.Of.said(at, m), err)
		}
	}
	for _, m := range e.Made {
		how := rtnl.Alone
		if m.Type == unix.RTM_NEWNEIGH {
			how = rtnl.Instead // of what the kernel has learnt
		}
		if err := rtnl.Make(at.ns, m, how); err != nil {
			refused := spec.Errorf(spec.CodeConfig, "%s: the kernel does not take %s: %w", c.Key, c.Of, err)
			if unreachable(err) && m.Type == unix.RTM_NEWROUTE {
				refused.WithHint("A next hop has to be in a subnet of the interface, or needs \"onlink\": true.")
			}
			return refused
		}
	}
	return nil
}

// takeBack undoes an entry, or as much of it as was done.
func (e changeEntry) takeBack(ns *kernel.NS) error {
	var errs []error
	for _, m := range e.Made {
		errs = append(errs, rtnl.Drop(ns, m))
	}
	for _, m := range e.Gone {
		errs = append(errs, putBack(ns, m))
	}
	return errors.Join(errs...)
}

// nearer has routes on the link come first: without them, those by a router could not be put back.
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

// putBack makes again what a Change took away. What has its place by now keeps that, and what cannot be any more stays
// away.
func putBack(ns *kernel.NS, m rtnl.Message) error {
	if m.Type != unix.RTM_NEWROUTE {
		if n := m.Neighbour(); m.Type == unix.RTM_NEWNEIGH && n.State&(rtnl.Permanent|rtnl.NoARP) == 0 {
			return nil // the kernel learns it again
		}
		if err := rtnl.Make(ns, m, rtnl.Alone); err != nil && !errors.Is(err, fs.ErrExist) && !unreachable(err) {
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
		return giveBack(ns, r)
	}
	err := rtnl.Make(ns, m, rtnl.Alone)
	if errors.Is(err, fs.ErrExist) {
		list, lerr := rtnl.RouteMessages(ns, rtnl.RouteFilter{Family: familyOf(r.Dst.Addr()), Table: r.Table})
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

// Verify implements plan.Resource.
func (c Change) Verify(ctx context.Context, w *kernel.World) error {
	if c.Unchecked {
		return nil
	}
	at, err := c.site(w)
	if err != nil {
		return err
	}
	rec, err := recallChanges(w, c.Owner, at.ns)
	if err != nil {
		return err
	}
	return c.verify(ctx, w, at, rec)
}

func (c Change) verify(ctx context.Context, w *kernel.World, at site, rec changed) error {
	if c.Do == Add || c.Do == Replace {
		return c.Of.verify(ctx, w, at)
	}
	list, err := c.Of.list(at)
	if err != nil {
		return err
	}
	i := rec.find(c.id())
	var d resource.Drift
	for _, m := range list {
		if !c.Of.selected(at, m, c.Do == Flush) || rec.made(m) {
			continue
		}
		// Other programs may add routes after a flush; those that it took are not to come back.
		back := func(gone rtnl.Message) bool { return sameMessage(gone, m) }
		if c.Do == Del || i < 0 || slices.ContainsFunc(rec.Entries[i].Gone, back) {
			d.Add(fmt.Errorf("%s is there", c.Of.said(at, m)))
		}
	}
	return d.Err()
}

// made reports whether a Change of the same owner has made what a message says.
func (rec changed) made(m rtnl.Message) bool {
	return slices.ContainsFunc(rec.Entries, func(e changeEntry) bool {
		return slices.ContainsFunc(e.Made, func(mine rtnl.Message) bool { return sameMessage(mine, m) })
	})
}

// sameMessage reports whether two are one to the kernel, whoever made them. The kernel fills in what was not said.
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

// Remove implements plan.Remover.
func (c Change) Remove(ctx context.Context, w *kernel.World) error {
	key := c.id()
	return removeChanges(ctx, w, c.Owner, func(e changeEntry) bool { return e.Key == key })
}

// removeChanges takes back the changes of an owner that are meant, the last first.
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
	left, err := rec.takeBack(ns, which)
	return errors.Join(err, left.remember(w, o))
}

// takeBack is what is left of the record; what could not be undone stays in it.
func (rec changed) takeBack(ns *kernel.NS, which func(changeEntry) bool) (changed, error) {
	left := rec
	left.Entries = nil
	var errs []error
	for _, e := range slices.Backward(rec.Entries) {
		if which(e) {
			err := e.takeBack(ns)
			if errs = append(errs, err); err == nil {
				continue
			}
		}
		left.Entries = append([]changeEntry{e}, left.Entries...)
	}
	return left, errors.Join(errs...)
}

// unlessTaken is routes without those that a Change of the same owner has taken away since (P16).
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

// Took reports whether the Change has taken away a route that a result names, so that the result has to be told.
func (c Change) Took(w *kernel.World, r addr.Route) (bool, error) {
	at, err := c.site(w)
	if err != nil {
		return false, err
	}
	rec, err := recallChanges(w, c.Owner, at.ns)
	i := rec.find(c.id())
	if err != nil || i < 0 {
		return false, err
	}
	return slices.ContainsFunc(rec.Entries[i].Gone, func(m rtnl.Message) bool {
		there := func(h rtnl.Route) bool { return h.Dst == r.Dst }
		return m.Type == unix.RTM_NEWROUTE && slices.ContainsFunc(m.Routes(), there)
	}), nil
}

// Routes are what a result says of the routes that the Change has made: one for each next hop.
func (c Change) Routes() []spec.Route {
	if r, ok := c.Of.(RouteEntry); ok && (c.Do == Add || c.Do == Replace) {
		return r.routes()
	}
	return nil
}

// ChangeKind is the Kind of Change.
func ChangeKind() plan.Kind {
	all := func(changeEntry) bool { return true }
	return resource.RecordKind("changes of routes, rules and neighbours", changeRecord,
		func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			return removeChanges(ctx, w, t.Owner, all)
		},
		func(ctx context.Context, _ *kernel.World, _ plan.Tag, rec changed) error {
			return within(ctx, rec.Path, rec.NS, func(ns *kernel.NS) error {
				_, err := rec.takeBack(ns, all)
				return err
			})
		})
}
