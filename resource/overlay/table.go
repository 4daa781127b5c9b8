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

// A table is what the kernel has for devices.
type table struct {
	ns         *kernel.NS
	links      map[string]int              // indices of links by their names; zero: there is none
	neighbours map[entryKey]rtnl.Neighbour // permanent ones of the devices
	forwarding map[entryKey]rtnl.Neighbour // of the devices
	routes     map[netip.Prefix]rtnl.Route // of RouteProtocol, by all links
	prohibits  map[netip.Prefix]rtnl.Route // of RouteProtocol, which lead nowhere
}

// An entryKey is a neighbour's address, or the MAC address of a forwarding entry, on a link.
type entryKey struct {
	link int
	of   string
}

func keyOf(link int, of fmt.Stringer) entryKey { return entryKey{link, of.String()} }

// read reads the tables of devices, and the routes.
func read(w *kernel.World, devices []string) (*table, error) {
	t := &table{ns: w.Host, links: map[string]int{}, neighbours: map[entryKey]rtnl.Neighbour{},
		forwarding: map[entryKey]rtnl.Neighbour{}, routes: map[netip.Prefix]rtnl.Route{},
		prohibits: map[netip.Prefix]rtnl.Route{}}
	for _, name := range devices {
		_, index, err := resource.Host.Index(w, name)
		if err != nil {
			return nil, err
		}
		t.links[name] = index
		if err := t.readDevice(index); err != nil {
			return nil, err
		}
	}
	for _, family := range resource.Families() {
		ours := rtnl.RouteFilter{Family: family, Table: rtnl.MainTable, Protocol: RouteProtocol}
		routes, err := rtnl.Routes(t.ns, ours)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Type == rtnl.ProhibitRoute {
				t.prohibits[r.Dst] = r
				continue
			}
			t.routes[r.Dst] = r
		}
	}
	return t, nil
}

// readDevice reads the entries of a device.
func (t *table) readDevice(index int) error {
	neighbours, err := rtnl.NeighbourMessages(t.ns, rtnl.IPv6, index)
	if err != nil {
		return err
	}
	for _, m := range neighbours {
		if n := m.Neighbour(); n.State == rtnl.Permanent {
			t.neighbours[keyOf(index, n.Addr)] = n
		}
	}
	entries, err := rtnl.NeighbourMessages(t.ns, rtnl.ForwardingTable, index)
	if err != nil {
		return err
	}
	for _, m := range entries {
		n := m.Neighbour()
		t.forwarding[keyOf(index, n.MAC)] = n
	}
	return nil
}

// index returns the index of a link, or zero: the kernel says of a route by it that there is no such device.
func (t *table) index(link string) int {
	index, known := t.links[link]
	if !known && link != "" {
		index, _ = rtnl.IndexOf(t.ns, link)
		t.links[link] = index
	}
	return index
}

// name returns the name of the link that a change is about.
func (t *table) name(c change) string {
	index := c.neighbour.Link
	if c.route.Dst.IsValid() {
		index = c.route.Link
	}
	for name, i := range t.links {
		if i == index {
			return name
		}
	}
	if l, err := rtnl.LinkByIndex(t.ns, index); err == nil {
		return l.Name
	}
	return ""
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
		changes = append(changes, change{phase: addEntry, edit: rtnl.Edit{Message: m, How: rtnl.Replace}, is: is,
			neighbour: want})
	}
	if p.Device != "" {
		via, device := NextHop(p.MAC), t.index(p.Device)
		want := rtnl.Neighbour{Addr: via, MAC: p.MAC, Link: device, State: rtnl.Permanent}
		have, found := t.neighbours[keyOf(device, via)]
		entry("neighbour", via, rtnl.NewNeighbour(t.ns, want), want, have, found)

		want.Addr = p.Endpoint
		have, found = t.forwarding[keyOf(device, p.MAC)]
		entry("forwarding entry", p.MAC, rtnl.NewForwarding(device, p.MAC, p.Endpoint), want, have, found)
	}
	for _, dst := range p.Prefixes {
		if p.Sealed {
			changes = append(changes, t.lacksProhibit(dst)...)
		}
		if p.leads(dst) {
			changes = append(changes, t.lacksRoute(p, dst)...)
		}
	}
	return changes
}

// lastPriority is the metric of routes that come after all others.
const lastPriority = 1 << 30

// lacksProhibit returns the change that makes the kernel refuse packets to a prefix that no other route takes.
func (t *table) lacksProhibit(dst netip.Prefix) []change {
	if _, found := t.prohibits[dst]; found {
		return nil
	}
	r := rtnl.Route{Dst: dst, Type: rtnl.ProhibitRoute, Priority: lastPriority, Table: rtnl.MainTable,
		Protocol: RouteProtocol}
	return []change{{phase: addRoute, route: r, is: spec.Missing("prohibit route " + dst.String()),
		edit: rtnl.Edit{Message: rtnl.NewRoute(t.ns, r, nil), How: rtnl.Exclusive}}}
}

// lacksRoute returns the change that makes the route to a prefix of p as described, if one is necessary.
func (t *table) lacksRoute(p Peer, dst netip.Prefix) []change {
	hop := p.Hop(dst)
	r := rtnl.Route{Dst: dst, Via: hop.Via, Link: t.index(hop.Link), Table: rtnl.MainTable, Protocol: RouteProtocol,
		OnLink: hop.Via.IsValid(), MTU: p.MTU}
	if !r.OnLink {
		r.Scope = rtnl.ScopeLink // as ip(8) does
	}
	for _, src := range p.Src {
		if src.Is4() == dst.Addr().Is4() {
			r.Src = src
		}
	}
	c := change{phase: addRoute, route: r, edit: rtnl.Edit{Message: rtnl.NewRoute(t.ns, r, nil), How: rtnl.Replace}}
	have, found := t.routes[dst]
	if !found {
		c.is = spec.Missing("route " + dst.String())
		c.edit.How = rtnl.Exclusive // another program's is not replaced
		return []change{c}
	}
	differs := func(field string, want, got any) {
		c.is = spec.Differs(field+" of route "+dst.String(), fmt.Sprint(want), fmt.Sprint(got))
	}
	switch {
	case have.Link != r.Link:
		differs("dev", hop.Link, t.name(change{route: have}))
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
	nextHops, macs, prefixes := map[entryKey]bool{}, map[entryKey]bool{}, map[netip.Prefix]bool{}
	sealed := map[netip.Prefix]bool{}
	for _, p := range peers {
		device := t.index(p.Device)
		nextHops[keyOf(device, NextHop(p.MAC))], macs[keyOf(device, p.MAC)] = true, true
		for _, dst := range p.Prefixes {
			prefixes[dst] = p.leads(dst)
			sealed[dst] = p.Sealed
		}
	}
	drop := func(r rtnl.Route, what string) {
		changes = append(changes, change{phase: dropRoute, route: r, is: spec.TooMuch(what + r.Dst.String()),
			edit: rtnl.Edit{Message: rtnl.NewRoute(t.ns, r, nil), Drop: true}})
	}
	for dst, r := range t.routes {
		if !prefixes[dst] {
			drop(r, "route ")
		}
	}
	for dst, r := range t.prohibits {
		if !sealed[dst] {
			drop(r, "prohibit route ")
		}
	}
	for key, n := range t.neighbours {
		if !nextHops[key] {
			changes = append(changes, change{phase: dropEntry, neighbour: n, is: spec.TooMuch("neighbour " + key.of),
				edit: rtnl.Edit{Message: rtnl.NewNeighbour(t.ns, n), Drop: true}})
		}
	}
	for key, n := range t.forwarding {
		if !macs[key] && n.Addr.IsValid() {
			changes = append(changes, change{phase: dropEntry, neighbour: n,
				is:   spec.TooMuch("forwarding entry " + key.of),
				edit: rtnl.Edit{Message: rtnl.NewForwarding(n.Link, n.MAC, n.Addr), Drop: true}})
		}
	}
	return changes
}

// apply makes changes in their order, and sets done of those that were made. It goes on after an error. Each error is
// the difference that stays.
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
		errs = append(errs, c.is.Saying(fmt.Errorf("%s: %w", c.is.Text, err)))
	}
	return errors.Join(errs...)
}

// takenRoute returns the error for a prefix to which another program has a route.
func (t *table) takenRoute(dst netip.Prefix, err error) error {
	routes, lerr := rtnl.Routes(t.ns, rtnl.RouteFilter{Family: rtnl.Family(dst.Addr()), Table: rtnl.MainTable})
	i := slices.IndexFunc(routes, func(r rtnl.Route) bool { return r.Dst == dst })
	if lerr != nil || i < 0 {
		return errors.Join(err, lerr)
	}
	taken := routes[i]
	return TakenRoute{Prefix: dst, Protocol: taken.Protocol, Link: rtnl.NameOf(t.ns, taken.Link), err: err}
}

// A TakenRoute is a route of another program to a prefix of a node.
type TakenRoute struct {
	Prefix   netip.Prefix
	Protocol uint8
	Link     string
	err      error // of the kernel
}

func (e TakenRoute) Error() string {
	return fmt.Sprintf("another program's route takes %v (proto %d, dev %s): remove it with `ip route del %[1]v dev "+
		"%[3]s`: %v", e.Prefix, e.Protocol, e.Link, e.err)
}

func (e TakenRoute) Unwrap() error { return e.err }
