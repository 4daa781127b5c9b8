package routing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/spec"
)

// SourceRoutingKind returns the Kind of SourceRouting. Table is the table of the configuration. DEL finds rules of
// the reference's plugin by it and by the addresses of the result.
func SourceRoutingKind(table int) plan.Kind {
	return resource.RecordKind("source routing", sourceRecord,
		func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			s := SourceRouting{Owner: t.Owner, Table: table}
			if t.Prev != nil {
				for _, ip := range t.Prev.IPs {
					s.Sources = append(s.Sources, Source{Prefix: ip.Address, Via: ip.Gateway})
				}
			}
			return s.Remove(ctx, w)
		}, func(ctx context.Context, _ *kernel.World, _ plan.Tag, rec sources) error { return rec.sweep(ctx) })
}

// A SourceRouting sends packets from the addresses of the owner's link out through that link, whatever routes the
// container's other links have. For each address, a rule selects a routing table. This is either a free table for the
// address alone, which gets the link's routes, or a table that another program has filled. Routes in a table of the
// address leave the main table, where they would compete with routes of other links. Remove moves them back.
type SourceRouting struct {
	Owner   spec.Owner
	Sources []Source
	Table   int  // zero: the first free one from 100 on, for each address one; else nothing but rules is made
	Hints   bool // the main table keeps the routes to the subnets, and they name the address to be used
}

// A Source is an address of the link.
type Source struct {
	Prefix netip.Prefix // the address with its subnet's length
	Via    netip.Addr   // the router for what has no other route; invalid: whatever the link has
	Always bool         // Via it is even if the link has a default route by another one
}

const (
	sourcePriority = rtnl.MainPriority - 1 // where the reference's first rule is
	firstTable     = 100
	sourceRecord   = "sources"
)

func (s SourceRouting) String() string {
	words := []string{"source routing cont/" + s.Owner.IfName}
	for _, src := range s.Sources {
		words = append(words, "from "+src.Prefix.String(), resource.Opt("via", src.Via),
			resource.Flag("always", src.Always))
	}
	table := "lookup free table"
	if s.Table != 0 {
		table = "lookup " + strconv.Itoa(s.Table)
	}
	return resource.Line(append(words, table, resource.Flag("hints", s.Hints))...)
}

// Traits implements resource.Describer.
func (s SourceRouting) Traits() resource.Traits {
	return resource.Traits{On: resource.Iface{Name: s.Owner.IfName}}
}

// lockSources keeps concurrent calls for the namespace from choosing the same table. The reference locks the
// namespace's own file, but a process in the container could hold that lock for ever. A lock file for each namespace
// would remain after the namespace.
func lockSources(ctx context.Context, ns *kernel.NS) (unlock func(), err error) {
	_, ino, err := ns.Inode()
	if err != nil {
		return nil, err
	}
	return record.Lock(ctx, "sbr-"+strconv.FormatUint(ino%16, 10))
}

// Ensure implements plan.Resource.
func (s SourceRouting) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	ns, index, err := resource.Container.Index(w, s.Owner.IfName)
	if err != nil {
		return false, err
	}
	sure, err := s.ready(ctx, ns, index)
	if err != nil {
		return false, err
	}
	vrf, err := resource.VRFOf(ns, index)
	if err != nil {
		return false, err
	}
	unlock, err := lockSources(ctx, ns)
	if err != nil {
		return false, err
	}
	defer unlock()
	rec, known, err := s.recall(w, ns)
	if err != nil {
		return false, err
	}
	if was, made := rec.By[s.Table]; made {
		if s.verify(ctx, w, ns, index, was) == nil {
			return false, nil
		}
		if err := was.undo(ctx, w, ns); err != nil { // of an ADD that was killed, or damaged since
			return false, err
		}
	}
	s.Hints = s.Hints && vrf == nil // no rule looks for the link in the main table then
	now, err := s.compose(ns, index, sure)
	if err != nil {
		return false, err
	}
	if vrf != nil {
		slog.Warn("the kernel looks in the VRF's table first: source routing applies only to destinations without a "+
			"route there", "link", s.Owner.IfName, "vrf", vrf.Name)
		now.Made = withoutSources(now.Made)
	}
	rec.By[s.Table] = now
	if err := w.Store.Put(sourceRecord, s.Owner, rec); err != nil {
		return false, err
	}
	if err := now.apply(ctx, w, ns); err != nil {
		undone := now.undo(context.WithoutCancel(ctx), w, ns)
		if delete(rec.By, s.Table); undone == nil && known {
			undone = w.Store.Put(sourceRecord, s.Owner, rec)
		} else if undone == nil {
			undone = w.Store.Delete(sourceRecord, s.Owner)
		}
		return false, errors.Join(err, undone)
	}
	return true, nil
}

// ready waits until the link's addresses have passed duplicate address detection, because the kernel refuses a route
// that names another address as its source. On a link without a carrier, such as a tap before its virtual machine
// runs, the detection does not finish until the link is in use.
func (s SourceRouting) ready(ctx context.Context, ns *kernel.NS, index int) (sure bool, err error) {
	addrs, err := rtnl.Addrs(ns, index)
	if err != nil {
		return false, err
	}
	l, err := rtnl.LinkByIndex(ns, index)
	if err != nil {
		return false, err
	}
	for _, src := range s.Sources {
		if !rtnl.HasAddr(addrs, src.Prefix.Addr()) {
			return false, fmt.Errorf("%s does not have the address %v that the previous result gives it",
				s.Owner.IfName, src.Prefix)
		}
		if !l.Operational {
			continue
		}
		if err := addr.AwaitDAD(ctx, ns, s.Owner.IfName, src.Prefix.Addr(), resource.KernelLimit); err != nil {
			return false, err
		}
	}
	return l.Operational, nil
}

// withoutSources is the routes as the kernel takes them of a link in a VRF: in no table but the VRF's may one name an
// IPv4 address of the link for its packets, for that is where the address is.
func withoutSources(list []rtnl.Route) []rtnl.Route {
	list = slices.Clone(list)
	for i := range list {
		if list[i].Src.Is4() {
			list[i].Src = netip.Addr{}
		}
	}
	return list
}

// Verify implements plan.Resource. It does not wait for addresses or routes that are not there yet.
func (s SourceRouting) Verify(ctx context.Context, w *kernel.World) error {
	ns, index, err := resource.Container.Index(w, s.Owner.IfName)
	if err != nil {
		return err
	}
	rec, _, err := s.recall(w, ns)
	if err != nil {
		return err
	}
	part := rec.By[s.Table]
	if part.Made, err = unlessTaken(w, s.Owner, ns, part.Made); err != nil {
		return err
	}
	return s.verify(ctx, w, ns, index, part)
}

func (s SourceRouting) verify(ctx context.Context, w *kernel.World, ns *kernel.NS, index int, rec sourced) error {
	var d resource.Drift
	vrf, err := resource.VRFOf(ns, index)
	if err != nil {
		return err
	}
	for _, src := range s.Sources {
		table, err := s.tableOf(ns, src, rec)
		if err != nil {
			return err
		}
		rule := sourceRule{src.Prefix.Addr(), table}.rule()
		if table == 0 {
			d.Add(spec.Missing(fmt.Sprintf("rule from %v:", src.Prefix.Addr())))
			continue
		}
		if err := rule.Verify(ctx, w); err != nil {
			d.Add(fmt.Errorf("%v: %w", rule, err))
		}
		if s.Table == 0 {
			d.Add(s.verifyTable(ns, index, src, table, rec, vrf != nil))
		}
	}
	if s.Table == 0 {
		d.Add(s.verifyMain(ns, index, rec, vrf != nil))
	}
	return d.Err()
}

// tableOf returns the table for packets from the source, by our record or else by an existing rule. It returns 0 if
// neither exists.
func (s SourceRouting) tableOf(ns *kernel.NS, src Source, rec sourced) (int, error) {
	if s.Table != 0 {
		return s.Table, nil
	}
	for _, r := range rec.Rules {
		if r.From == src.Prefix.Addr() {
			return r.Table, nil
		}
	}
	rules, err := rtnl.Rules(ns, rtnl.Family(src.Prefix.Addr()))
	for _, r := range rules {
		if addr.RuleFromAddr(r, src.Prefix.Addr()) && r.Priority == sourcePriority {
			return r.Table, err
		}
	}
	return 0, err
}

// Remove implements plan.Remover. It removes what the record lists. Without a record, it removes the rules and routes
// that carry the protocol number of this program, and those that the reference has made for one of the addresses.
func (s SourceRouting) Remove(ctx context.Context, w *kernel.World) error {
	ns, err := resource.Container.Namespace(w)
	if err != nil { // gone, and all that was in it
		return w.Store.Delete(sourceRecord, s.Owner)
	}
	unlock, err := lockSources(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	var other sources
	rec, known, err := s.recall(w, ns)
	if err == nil && !known {
		known, err = w.Store.Get(sourceRecord, s.Owner, &other)
		if known { // of a namespace that is gone; this one has its path and is none of ours
			return errors.Join(err, w.Store.Delete(sourceRecord, s.Owner))
		}
	}
	if err != nil {
		return err
	}
	index, err := rtnl.IndexOf(ns, s.Owner.IfName)
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return err
	}
	if !known {
		if other, err := link.TakenByAnother(w, s.Owner); other || err != nil {
			return err
		}
	}
	var errs []error
	for _, part := range rec.By {
		errs = append(errs, part.undo(ctx, w, ns))
	}
	if index != 0 {
		errs = append(errs, s.removeOthers(ns, index, known))
	}
	if errors.Join(errs...) == nil {
		errs = append(errs, w.Store.Delete(sourceRecord, s.Owner))
	}
	return errors.Join(errs...)
}
