package routing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Change does to routes, rules or neighbours of a container what a command of ip(8) does, such as "ip route
// replace". It first records what it is going to add and delete. Remove deletes the added objects and restores the
// deleted ones.
type Change struct {
	Owner     spec.Owner
	Do        Verb
	Of        Subject
	Key       string // of the configuration, for errors
	Unchecked bool   // Verify says nothing: the container changes its routes by itself
}

// A Verb is the verb of a Change, as in ip(8).
type Verb string

// The Verbs. Add fails if another object has the key, and Replace replaces that object. Del deletes the described
// object. Flush deletes all objects but those that the interface needs.
const (
	Add     Verb = "add"
	Replace Verb = "replace"
	Del     Verb = "del"
	Flush   Verb = "flush"
)

// A Subject is the object of a Change: a RouteEntry, a RuleEntry or a NeighbourEntry.
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

// A site is the namespace and link where a Change is made.
type site struct {
	ns    *kernel.NS
	index int // of the link
	table int // the link's own: main, or that of its VRF
}

// String returns the command without its first word, and the namespace.
func (c Change) String() string {
	where := "dev cont/" + c.Owner.IfName
	if _, ok := c.Of.(RuleEntry); ok {
		where = "in cont/"
	}
	return resource.Line(c.Of.kind(), string(c.Do), c.Of.String(), where, resource.Flag("unchecked", c.Unchecked))
}

// Traits implements resource.Describer.
func (c Change) Traits() resource.Traits {
	return resource.Traits{On: resource.Iface{Name: c.Owner.IfName}, Routes: c.routes(), Deleted: c.deleted}
}

// id identifies one of an owner's changes. Equal changes may occur twice, with others between them.
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
		if err := rec.Entries[i].undo(at.ns); err != nil { // of an ADD that was killed, or damaged since
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
		undone := e.undo(at.ns)
		if undone == nil {
			undone = was.remember(w, c.Owner)
		}
		return false, errors.Join(err, undone)
	}
	return true, nil
}

// compose returns the objects to create and to delete, from the existing ones.
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

// apply deletes before it creates, because both may have the same destination.
func (c Change) apply(at site, e changeEntry) error {
	gone := slices.Clone(e.Gone) // of two that differ in an attribute, the one without is asked for last: it means both
	slices.SortStableFunc(gone, func(a, b rtnl.Message) int { return cmp.Compare(len(b.Body), len(a.Body)) })
	for _, m := range gone {
		if err := rtnl.Drop(at.ns, m); err != nil {
			return fmt.Errorf("%s: delete %s: %w", c.Key, c.Of.said(at, m), err)
		}
	}
	for _, m := range e.Made {
		how := rtnl.Exclusive
		if m.Type == unix.RTM_NEWNEIGH {
			how = rtnl.Replace // of what the kernel has learnt
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
			there := spec.DiffersBy(c.Of.said(at, m), "%s is there", c.Of.said(at, m))
			there.Got = spec.Surplus
			d.Add(there)
		}
	}
	return d.Err()
}

// Remove implements plan.Remover.
func (c Change) Remove(ctx context.Context, w *kernel.World) error {
	key := c.id()
	return removeChanges(ctx, w, c.Owner, func(e changeEntry) bool { return e.Key == key })
}

// deleted reports whether the Change has deleted a route to a destination.
func (c Change) deleted(w *kernel.World, to netip.Prefix) (bool, error) {
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
		there := func(h rtnl.Route) bool { return h.Dst == to }
		return m.Type == unix.RTM_NEWROUTE && slices.ContainsFunc(m.Routes(), there)
	}), nil
}

// routes returns the routes that the Change adds, one for each next hop.
func (c Change) routes() []spec.Route {
	if r, ok := c.Of.(RouteEntry); ok && (c.Do == Add || c.Do == Replace) {
		return r.routes()
	}
	return nil
}

// ChangeKind returns the Kind of Change.
func ChangeKind() plan.Kind {
	all := func(changeEntry) bool { return true }
	return resource.RecordKind("changes of routes, rules and neighbours", changeRecord,
		func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			return removeChanges(ctx, w, t.Owner, all)
		},
		func(ctx context.Context, _ *kernel.World, _ plan.Tag, rec changed) error {
			return within(ctx, rec.Path, rec.NS, func(ns *kernel.NS) error {
				_, err := rec.undo(ns, all)
				return err
			})
		})
}
