package routing

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/spec"
)

// VRFKind returns the Kind of VRF. Name is the VRF's name in the configuration. DEL finds a VRF of the reference's
// plugin by it.
func VRFKind(name string) plan.Kind {
	return resource.RecordKind("VRF", vrfRecord, func(ctx context.Context, w *kernel.World, t plan.Tag) error {
		return VRF{Owner: t.Owner, Name: name}.Remove(ctx, w)
	}, func(ctx context.Context, _ *kernel.World, _ plan.Tag, m member) error {
		return within(ctx, m.Path, m.NS, func(ns *kernel.NS) error { return m.leave(ctx, ns, true) })
	})
}

// A VRF puts the owner's link into a VRF of the container: a link with members and a routing table for them alone.
// The first member creates the VRF and the last one removes it. Addresses and routes move with the link. A VRF that
// existed before the first ADD stays.
type VRF struct {
	Owner spec.Owner
	Name  string // empty where DEL has no configuration: the one that the link is in
	Table int    // zero: that of the VRF, or a free one
}

func (v VRF) String() string {
	table := resource.Opt("table", v.Table)
	if v.Name == "" {
		return "link cont/" + v.Owner.IfName + " nomaster"
	}
	if v.Table == 0 {
		table = "free table"
	}
	return resource.Line("link cont/"+v.Owner.IfName, "master "+v.Name, "type vrf", table)
}

// vrfRecord is the record of what a member was before it was one.
const vrfRecord = "vrf"

type member struct {
	NS    kernel.Identity
	Path  string
	Link  string
	Index int // of the link, which has it under every name; zero in the records of earlier versions
	VRF   string
	Table int
	Found bool         // the VRF was there, and had no owner
	Was   []rtnl.Route // the link's routes before, in whichever table
	Made  []rtnl.Route // and where they are now
}

// recall returns the owner's record if it is for this namespace. Another namespace may have the same path by now.
func (v VRF) recall(w *kernel.World, ns *kernel.NS) (m member, known, elsewhere bool, err error) {
	if known, err = w.Store.Get(vrfRecord, v.Owner, &m); err != nil {
		return m, false, false, err
	}
	if known {
		if same, err := ns.Is(m.NS); err != nil || same {
			return m, same, false, err
		}
	}
	id, err := ns.Identity()
	return member{NS: id, Path: ns.Path, Link: v.Owner.IfName}, false, known, err
}

// Traits implements resource.Describer.
func (v VRF) Traits() resource.Traits {
	is := resource.Traits{Possible: resource.KindPossible("vrf"), On: resource.Iface{Name: v.Owner.IfName}}
	if v.Name != "" {
		is.Network.Marks = []string{"VRF " + v.Name}
	}
	return is
}

// Ensure implements plan.Resource.
func (v VRF) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	ns, err := resource.Container.Namespace(w)
	if err != nil {
		return false, err
	}
	unlock, err := lockSources(ctx, ns) // no other call is to choose the same table
	if err != nil {
		return false, err
	}
	defer unlock()
	l, err := rtnl.LinkByName(ns, v.Owner.IfName)
	if err != nil {
		return false, err
	}
	m, known, _, err := v.recall(w, ns)
	if err != nil {
		return false, err
	}
	if l.Master != 0 {
		if known && v.verify(ns, l, m, known) == nil {
			return false, nil
		}
		return false, v.taken(ns, l)
	}
	m = member{NS: m.NS, Path: m.Path, Link: l.Name, Index: l.Index, VRF: v.Name}
	vrf, err := v.device(ns)
	made := errors.Is(err, rtnl.ErrNoLink)
	if made {
		vrf, err = v.make(ns)
	}
	if err != nil {
		return false, err
	}
	m.Table, m.Found = int(vrf.Data.Table), !resource.OwnVRF(vrf)
	if m.Was, err = movable(ns, l.Index); err == nil {
		err = w.Store.Put(vrfRecord, v.Owner, m)
	}
	if err == nil {
		err = m.join(ctx, ns, l, vrf)
	}
	if err == nil { // with what the routes have become
		err = w.Store.Put(vrfRecord, v.Owner, m)
	}
	if err != nil {
		return false, errors.Join(err, m.leave(context.WithoutCancel(ctx), ns, true),
			w.Store.Delete(vrfRecord, v.Owner))
	}
	return true, nil
}

// taken says what the link is a member of.
func (v VRF) taken(ns *kernel.NS, l *rtnl.Link) error {
	what := fmt.Sprintf("#%d", l.Master)
	if master, err := rtnl.LinkByIndex(ns, l.Master); err == nil {
		what = resource.KindOf(master) + ", " + master.Name
	}
	return spec.Errorf(spec.CodeConfig, "vrfname: %q: %s belongs to %s already, and a link belongs to one at most",
		v.Name, l.Name, what)
}

// device is the VRF, set up, or ErrNoLink.
func (v VRF) device(ns *kernel.NS) (*rtnl.Link, error) {
	l, err := rtnl.LinkByName(ns, v.Name)
	switch {
	case err != nil:
		return nil, err
	case l.Kind != "vrf":
		return nil, spec.Errorf(spec.CodeConfig, "vrfname: %q: is %s in the container; name another", v.Name,
			resource.KindOf(l))
	case v.Table != 0 && int(l.Data.Table) != v.Table:
		return nil, spec.Errorf(spec.CodeConfig, "table: %d: the VRF %s has %d; want that, or leave the key out",
			v.Table, v.Name, l.Data.Table)
	case !l.Up:
		err = rtnl.SetLink(ns, v.Name, rtnl.LinkChange{Up: true})
	}
	return l, err
}

// make makes the VRF. It is marked as the network's, for it outlives the attachment that asks for it first.
func (v VRF) make(ns *kernel.NS) (*rtnl.Link, error) {
	table, err := v.choose(ns)
	if err != nil {
		return nil, err
	}
	err = rtnl.AddLink(ns, rtnl.NewLink{
		Name: v.Name, Kind: "vrf", Up: true, Data: rtnl.VRFData(table),
		Group: identity.LinkGroup(v.Owner.Network), Alias: identity.Tag(spec.Owner{Network: v.Owner.Network}),
	})
	if err != nil {
		return nil, err
	}
	return rtnl.LinkByName(ns, v.Name)
}

// choose returns the VRF's table: the configured one, or the first that no route, rule or other VRF uses.
func (v VRF) choose(ns *kernel.NS) (int, error) {
	used := map[int]bool{0: true, 253: true, 254: true, 255: true}
	links, err := rtnl.Links(ns)
	for _, l := range links {
		if l.Kind != "vrf" {
			continue
		}
		if used[int(l.Data.Table)] = true; v.Table == int(l.Data.Table) {
			return 0, spec.Errorf(spec.CodeConfig, "table: %d: the VRF %s has it; want another, or leave the key out",
				v.Table, l.Name)
		}
	}
	if v.Table != 0 || err != nil {
		return v.Table, err
	}
	if _, err := tablesInUse(ns, used); err != nil {
		return 0, err
	}
	table := 1
	for used[table] {
		table++
	}
	return table, nil
}

// Verify implements plan.Resource.
func (v VRF) Verify(ctx context.Context, w *kernel.World) error {
	ns, l, lerr := resource.Container.Link(w, v.Owner.IfName)
	if resource.ExceptNoLink(lerr) != nil {
		return lerr
	}
	m, known, _, err := v.recall(w, ns)
	if err != nil {
		return err
	}
	if lerr != nil {
		lerr, _ = link.CalledNow(ns, lerr, func(l *rtnl.Link) bool { return known && l.Index == m.Index })
		return lerr
	}
	if m.Made, err = unlessTaken(w, v.Owner, ns, m.Made); err != nil {
		return err
	}
	return v.verify(ns, l, m, known)
}

func (v VRF) verify(ns *kernel.NS, l *rtnl.Link, m member, known bool) error {
	vrf, err := rtnl.LinkByName(ns, v.Name)
	if err != nil {
		return err
	}
	var d resource.Drift
	if vrf.Kind != "vrf" {
		d.Want("type of "+v.Name, "vrf", vrf.Kind)
		return d.Err()
	}
	d.WantUp("state of "+v.Name, vrf)
	if l.Master != vrf.Index {
		d.Want("master", v.Name, rtnl.NameOf(ns, l.Master))
	}
	table := v.Table
	if table == 0 && known {
		table = m.Table
	}
	if table != 0 {
		d.Want("table of "+v.Name, table, vrf.Data.Table)
	}
	for _, family := range resource.Families() {
		of := func(r rtnl.Route) bool { return rtnl.Family(r.Dst.Addr()) != family }
		if want := slices.DeleteFunc(slices.Clone(m.Made), of); len(want) > 0 {
			have, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: family, Link: l.Index})
			d.Add(err)
			for _, r := range want {
				d.Add(missing(ns, []rtnl.Route{r}, slices.DeleteFunc(slices.Clone(have),
					func(h rtnl.Route) bool { return h.Table != r.Table })))
			}
		}
	}
	return d.Err()
}

// Remove implements plan.Remover.
func (v VRF) Remove(ctx context.Context, w *kernel.World) error {
	ns, err := resource.Container.Namespace(w)
	if err != nil { // gone, and all that was in it
		return w.Store.Delete(vrfRecord, v.Owner)
	}
	unlock, err := lockSources(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	m, known, elsewhere, err := v.recall(w, ns)
	if err != nil {
		return err
	}
	if elsewhere { // this namespace has its path, and is none of ours
		return w.Store.Delete(vrfRecord, v.Owner)
	}
	if !known {
		if other, err := link.TakenByAnother(w, v.Owner); other || err != nil {
			return err
		}
		m.VRF = v.Name
	}
	if err := m.leave(ctx, ns, known); err != nil {
		return err
	}
	return w.Store.Delete(vrfRecord, v.Owner)
}
