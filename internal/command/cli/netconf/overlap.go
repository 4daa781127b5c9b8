package netconf

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// wire is the segment that containers of a network share, and the ranges of their addresses.
type wire struct {
	resource.Segment
	Routed bool // the host is the containers' gateway
	ranges []ipam.Range
}

// WireOf returns the wire of a network, as the plan of its first plugin says. Ok is false if the plugin is not of this
// project, or the ranges of its addresses are not known.
func WireOf(l *spec.List) (w wire, ok bool) {
	l = l.WrittenOut()
	if len(l.Plugins) == 0 {
		return w, false
	}
	n, pools, ok := foreseen(l)
	if !ok {
		return w, false
	}
	w.Segment, w.Routed = n.Segment, n.Gateway
	if w.Kind == "" {
		w.Kind = "network " + l.Name
	}
	for _, s := range pools {
		w.ranges = append(w.ranges, s.Ranges...)
	}
	return w, true
}

// foreseen returns what the plan of an interface plugin says about a network before anything is attached to it, and the
// pools of its addresses. Ok is false if the plugin is not of this project, or its addresses are not known.
func foreseen(l *spec.List) (n resource.Network, pools []ipam.Set, ok bool) {
	all, conf := plugin.All(), l.Plugins[0]
	example, pools := sdk.Forecast(all, conf)
	i := slices.IndexFunc(all, func(p sdk.Plugin) bool { return p.Name == conf.Type })
	if i < 0 || len(pools) == 0 {
		return n, nil, false
	}
	owner := spec.Owner{Network: l.Name, ContainerID: "example", IfName: "eth0"}
	r, err := all[i].NewRequest("ADD", owner, attached.NetnsDir+"/example", conf, nil)
	if err != nil {
		return n, nil, false // the plugin reports the error
	}
	r.IPs, r.Routes = example.IPs, example.Routes
	answer, _, err := all[i].Plan(conf, r)
	if err != nil {
		return n, nil, false
	}
	return resource.NetworkOf(answer.Plan), pools, true
}

// Wired is a network, and its wire if known.
type Wired struct {
	*spec.List
	wire wire
	ok   bool
}

// Wires returns the networks with their wires, so that each is computed once for many comparisons.
func Wires(lists []*spec.List) []Wired {
	all := make([]Wired, len(lists))
	for i, l := range lists {
		all[i].List = l
		all[i].wire, all[i].ok = WireOf(l)
	}
	return all
}

// overlap says how two networks conflict, or "": on one segment they may allocate the same address; elsewhere their
// subnets overlap, so that the host reaches only one of the two.
func (w wire) overlap(other wire) string {
	for _, a := range w.ranges {
		for _, b := range other.ranges {
			switch {
			case w.Segment == other.Segment:
				sameFamily := a.Subnet.Addr().Is4() == b.Subnet.Addr().Is4()
				if sameFamily && a.RangeStart.Compare(b.RangeEnd) <= 0 && b.RangeStart.Compare(a.RangeEnd) <= 0 {
					return fmt.Sprintf("both are on %s and allocate addresses of %v-%v and of %v-%v: two "+
						"containers may get one address; give each network a range of its "+
						"own", w.Segment, a.RangeStart, a.RangeEnd, b.RangeStart, b.RangeEnd)
				}
			case w.Routed && other.Routed && a.Subnet.Overlaps(b.Subnet):
				return fmt.Sprintf("subnet %v overlaps with %v: the host reaches the containers of only one of the "+
					"two; give each network a subnet of its own", a.Subnet, b.Subnet)
			}
		}
	}
	return ""
}

// An OverlapError says what a network's subnet overlaps with on the host.
type OverlapError struct {
	With  netip.Prefix // an address of a link, or a route
	Kind  string       // address or route
	Wider bool         // a route that is wider than the subnet: the host's route to the containers goes before it
	text  string
}

func (o *OverlapError) Error() string { return o.text }

// Overlaps returns warnings of a network that overlaps with one of the others, or with an address or route of this
// host. Said holds the pairs that were reported. It leaves out what it may not read.
func Overlaps(l *spec.List, others []Wired, said map[[2]string]bool) (problems []error) {
	mine, ok := WireOf(l)
	if !ok {
		return nil
	}
	problems = Overlapping(l, others, said)
	if !mine.Routed || mine.Link == "" {
		return problems
	}
	ofLink := map[string]string{}
	for _, other := range others {
		if other.ok && other.Name != l.Name {
			ofLink[other.wire.Link] = other.Name
		}
	}
	ns, err := kernel.Open("")
	if err != nil {
		return problems
	}
	defer ns.Close()
	seen := map[netip.Prefix]bool{}
	for _, r := range mine.ranges {
		if seen[r.Subnet] {
			continue
		}
		seen[r.Subnet] = true
		link, kind, prefix, err := rtnl.Overlap(ns, mine.Link, r.Subnet)
		if err == nil && link != "" && !strings.HasPrefix(link, mine.Link+".") { // the gateways of its VLANs
			o := &OverlapError{With: prefix, Kind: kind, Wider: kind == "route" && prefix.Bits() < r.Subnet.Bits()}
			o.text = fmt.Sprintf("subnet %v overlaps with %s %v of link %s of the host, %s; choose another subnet",
				r.Subnet, kind, prefix, link, rtnl.Overlapping)
			if o.Wider {
				o.text = fmt.Sprintf("subnet %v lies inside the route %v by link %s of the host, which no longer "+
					"reaches that part of it; "+
					"if a host there uses an address of the subnet, choose another subnet", r.Subnet,
					prefix, link)
			}
			problems = append(problems, overlapped(l, others, cmp.Or(ofLink[link], link), said, o)...)
		}
	}
	return problems
}

// Overlapping returns warnings of a network that overlaps with one of the others, by their files alone.
func Overlapping(l *spec.List, others []Wired, said map[[2]string]bool) (problems []error) {
	mine, ok := WireOf(l)
	if !ok {
		return nil
	}
	for _, other := range others {
		if !other.ok || other.Name == l.Name {
			continue
		}
		if text := mine.overlap(other.wire); text != "" && other.File != "" {
			problems = append(problems, overlapped(l, others, other.Name, said, errors.New(text))...)
		}
	}
	return problems
}

// overlapped returns a warning of l and a network or link called with, unless said has the pair.
func overlapped(l *spec.List, others []Wired, with string, said map[[2]string]bool, why error) []error {
	pair := [2]string{min(l.Name, with), max(l.Name, with)}
	if said[pair] {
		return nil
	}
	said[pair] = true
	name := "link " + with
	for _, other := range others {
		if other.Name == with {
			name = fmt.Sprintf("network %s (%s)", with, cmp.Or(other.File, "built in"))
		}
	}
	return []error{&spec.FileError{File: l.File, Err: fmt.Errorf("network %s and %s: %w", l.Name, name, why)}}
}

// WarnOfOverlaps prints what n overlaps with, before its plugins do: those do not know the networks' names.
func WarnOfOverlaps(a *app.App, n *Network, rt *attach.Runtime) {
	lists, _ := Lists(true)
	found := Overlaps(n.List, Wires(lists), map[[2]string]bool{})
	app.Warn(a, found)
	if s, ok := rt.Stderr.(term.Screen); ok && len(found) > 0 {
		a.Note("correct one of the two; `fairlead net ls` checks all files")
		s.Said.Store(rtnl.Overlapping, true)
	}
}

// Shared returns the networks of others that are on the same bridge and VLAN as l.
func Shared(l *spec.List, others []Wired) (names []string) {
	mine, ok := WireOf(l)
	if !ok || l.WrittenOut().Plugins[0].Type != "bridge" {
		return nil
	}
	for _, other := range others {
		if other.ok && other.Name != l.Name && other.wire.Segment == mine.Segment {
			names = append(names, other.Name)
		}
	}
	return names
}
