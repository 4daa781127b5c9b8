package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A table is what the kernel has for a device.
type table struct {
	ns         *kernel.NS
	index      int                           // of the device
	neighbours map[netip.Addr]rtnl.Neighbour // permanent ones
	forwarding map[string]rtnl.Neighbour     // by MAC address
	routes     map[netip.Prefix]rtnl.Route   // of RouteProtocol
}

// read reads the tables of a device.
func read(w *kernel.World, device string) (*table, error) {
	ns, index, err := resource.Host.Index(w, device)
	if err != nil {
		return nil, err
	}
	t := &table{ns, index, map[netip.Addr]rtnl.Neighbour{}, map[string]rtnl.Neighbour{}, map[netip.Prefix]rtnl.Route{}}
	neighbours, err := rtnl.NeighbourMessages(ns, rtnl.IPv6, index)
	if err != nil {
		return nil, err
	}
	for _, m := range neighbours {
		if n := m.Neighbour(); n.State == rtnl.Permanent {
			t.neighbours[n.Addr] = n
		}
	}
	entries, err := rtnl.NeighbourMessages(ns, rtnl.ForwardingTable, index)
	if err != nil {
		return nil, err
	}
	for _, m := range entries {
		n := m.Neighbour()
		t.forwarding[n.MAC.String()] = n
	}
	for _, family := range resource.Families() {
		routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable, Link: index,
			Protocol: RouteProtocol})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			t.routes[r.Dst] = r
		}
	}
	return t, nil
}

// A phase orders changes: nothing leads to an entry that does not exist.
type phase int

const (
	addEntry phase = iota
	addRoute
	dropRoute
	dropEntry
)

// A change makes one entry of a table as it should be. Either neighbour or route is set.
type change struct {
	phase     phase
	edit      rtnl.Edit
	is        spec.Difference
	neighbour rtnl.Neighbour
	route     rtnl.Route
	done      bool
}

// lacks returns the changes that make the entries of p as described.
func (t *table) lacks(p Peer) (changes []change) {
	entry := func(what string, key fmt.Stringer, m rtnl.Message, want rtnl.Neighbour, have rtnl.Neighbour, found bool) {
		var is spec.Difference
		switch {
		case !found:
			is = spec.Missing(what + " " + key.String())
		case !bytes.Equal(have.MAC, want.MAC):
			is = spec.Differs("lladdr of "+what+" "+key.String(), want.MAC.String(), have.MAC.String())
		case have.Addr != want.Addr:
			is = spec.Differs("dst of "+what+" "+key.String(), want.Addr.String(), have.Addr.String())
		default:
			return
		}
		changes = append(changes, change{phase: addEntry, edit: rtnl.Edit{Message: m, How: rtnl.Instead}, is: is,
			neighbour: want})
	}
	via := NextHop(p.MAC)
	want := rtnl.Neighbour{Addr: via, MAC: p.MAC, Link: t.index, State: rtnl.Permanent}
	have, found := t.neighbours[via]
	entry("neighbour", via, rtnl.NewNeighbour(t.ns, want), want, have, found)

	want.Addr = p.Endpoint
	have, found = t.forwarding[p.MAC.String()]
	entry("forwarding entry", p.MAC, rtnl.NewForwarding(t.index, p.MAC, p.Endpoint), want, have, found)

	for _, dst := range p.Prefixes {
		changes = append(changes, t.lacksRoute(p, dst)...)
	}
	return changes
}

// lacksRoute returns the change that makes the route to a prefix of p as described, if one is necessary.
func (t *table) lacksRoute(p Peer, dst netip.Prefix) []change {
	r := rtnl.Route{Dst: dst, Via: NextHop(p.MAC), Link: t.index, Table: rtnl.MainTable, Protocol: RouteProtocol,
		OnLink: true, MTU: p.MTU}
	for _, src := range p.Src {
		if src.Is4() == dst.Addr().Is4() {
			r.Src = src
		}
	}
	c := change{phase: addRoute, route: r, edit: rtnl.Edit{Message: rtnl.NewRoute(t.ns, r, nil), How: rtnl.Instead}}
	have, found := t.routes[dst]
	if !found {
		c.is = spec.Missing("route " + dst.String())
		c.edit.How = rtnl.Alone // another program's is not replaced
		return []change{c}
	}
	differs := func(field string, want, got any) {
		c.is = spec.Differs(field+" of route "+dst.String(), fmt.Sprint(want), fmt.Sprint(got))
	}
	switch {
	case have.Via != r.Via:
		differs("via", r.Via, have.Via)
	case have.Src != r.Src:
		differs("src", r.Src, have.Src)
	case have.MTU != r.MTU:
		differs("mtu", r.MTU, have.MTU)
	default:
		return nil
	}
	return []change{c}
}

// surplus returns the changes that remove what none of the peers has.
func (t *table) surplus(peers []Peer) (changes []change) {
	nextHops, macs, prefixes := map[netip.Addr]bool{}, map[string]bool{}, map[netip.Prefix]bool{}
	for _, p := range peers {
		nextHops[NextHop(p.MAC)], macs[p.MAC.String()] = true, true
		for _, dst := range p.Prefixes {
			prefixes[dst] = true
		}
	}
	for dst, r := range t.routes {
		if !prefixes[dst] {
			changes = append(changes, change{phase: dropRoute, route: r, is: spec.TooMuch("route " + dst.String()),
				edit: rtnl.Edit{Message: rtnl.NewRoute(t.ns, r, nil), Drop: true}})
		}
	}
	for via, n := range t.neighbours {
		if !nextHops[via] {
			changes = append(changes, change{phase: dropEntry, neighbour: n,
				is:   spec.TooMuch("neighbour " + via.String()),
				edit: rtnl.Edit{Message: rtnl.NewNeighbour(t.ns, n), Drop: true}})
		}
	}
	for mac, n := range t.forwarding {
		if !macs[mac] && n.Addr.IsValid() {
			changes = append(changes, change{phase: dropEntry, neighbour: n,
				is:   spec.TooMuch("forwarding entry " + mac),
				edit: rtnl.Edit{Message: rtnl.NewForwarding(t.index, n.MAC, n.Addr), Drop: true}})
		}
	}
	return changes
}

// apply makes changes in their order, and sets done of those that were made. It goes on after an error.
func (t *table) apply(changes []change) error {
	edits := make([]rtnl.Edit, len(changes))
	for i, c := range changes {
		edits[i] = c.edit
	}
	var errs []error
	for i, err := range rtnl.Batch(t.ns, edits) {
		c := &changes[i]
		c.done = err == nil
		if err == nil {
			continue
		}
		if c.route.Dst.IsValid() && netlink.Is(err, unix.EEXIST) {
			err = t.takenRoute(c.route.Dst, err)
		}
		errs = append(errs, fmt.Errorf("%s: %w", c.is.Error(), err))
	}
	return errors.Join(errs...)
}

// takenRoute returns the error for a prefix to which another program has a route.
func (t *table) takenRoute(dst netip.Prefix, err error) error {
	family := uint8(rtnl.IPv6)
	if dst.Addr().Is4() {
		family = rtnl.IPv4
	}
	routes, lerr := rtnl.Routes(t.ns, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable})
	i := slices.IndexFunc(routes, func(r rtnl.Route) bool { return r.Dst == dst })
	if lerr != nil || i < 0 {
		return errors.Join(err, lerr)
	}
	name := "none"
	if l, err := rtnl.LinkByIndex(t.ns, routes[i].Link); err == nil {
		name = l.Name
	}
	return fmt.Errorf("another program's route takes %v (proto %d, dev %s): remove it with `ip route del %[1]v dev "+
		"%[3]s`: %w", dst, routes[i].Protocol, name, err)
}
