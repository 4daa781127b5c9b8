package graph

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/inspect"
	"github.com/fairlead-cni/fairlead/internal/command/graph"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// segment returns what the interface of an attachment leads to, and records in e the way there.
func (p *painter) segment(c attach.Cached, net resource.Network, inner *rtnl.Link, e *graph.End) graph.Segment {
	typ := firstType(c)
	if inner != nil {
		e.Kind = inner.Kind
	}
	e.Kind = cmp.Or(e.Kind, typ)
	e.Wire = graph.Up
	ends := inspect.HostEnds(p.Doctor, c, inner)
	bridge, near := "", ""
	for _, l := range ends {
		switch {
		case l.Missing:
			e.Wire = graph.Broken
		case l.Cut && e.Wire == graph.Up, len(ends) > 1 && l.Kind == "bridge" && near == "":
			e.Wire = graph.Broken
		case !l.Up && l.Kind == "veth" && e.Wire == graph.Up:
			e.Wire = graph.Down
		}
		if l.Kind == "bridge" {
			bridge = l.Name
		} else if near == "" {
			near = l.Name
		}
	}
	stacked := slices.Contains([]string{"macvlan", "macvtap", "ipvlan", "vlan"}, e.Kind)
	if near != "" && !stacked {
		e.Host = near
		p.ends = append(p.ends, near)
	}
	if l := p.link(near); l != nil && !stacked {
		e.Marks = append(e.Marks, p.vlans(l)...)
	}
	switch {
	case net.Segment.Kind == "ovs bridge":
		return graph.Segment{Name: net.Segment.Link, Kind: "Open vSwitch bridge"}
	case stacked:
		e.Kind = strings.TrimSpace(e.Kind + " " + net.Mode)
		return graph.Segment{Name: cmp.Or(near, net.Segment.Link, "unknown"), Kind: "master"}
	case bridge != "":
		return graph.Segment{Name: bridge, Kind: "bridge"}
	case net.Segment.Kind == "bridge":
		e.Wire = graph.Broken
		return graph.Segment{Name: net.Segment.Link, Kind: "bridge"}
	case near != "":
		return graph.Segment{Name: c.Network, Kind: "routed"}
	}
	return graph.Segment{Name: c.Network, Kind: cmp.Or(typ, "network")}
}

// firstType returns the type of the plugin that made an attachment's interface, or "".
func firstType(c attach.Cached) string {
	l := c.AttachedBy(nil)
	if l == nil || len(l.WrittenOut().Plugins) == 0 {
		return ""
	}
	return l.WrittenOut().Plugins[0].Type
}

// vlans returns the VLANs of a bridge port, without the default one.
func (p *painter) vlans(port *rtnl.Link) (marks []string) {
	list, err := rtnl.PortVLANs(p.World.Host, port.Index)
	if port.Port == nil || err != nil {
		return nil
	}
	for _, v := range list {
		switch {
		case v.PVID && v.First != 1:
			marks = append(marks, fmt.Sprintf("VLAN %d", v.First))
		case v.PVID, v.First == 1 && v.Untagged:
		case v.Last > v.First:
			marks = append(marks, fmt.Sprintf("VLANs %d-%d tagged", v.First, v.Last))
		default:
			marks = append(marks, fmt.Sprintf("VLAN %d tagged", v.First))
		}
	}
	return marks
}

// facts adds what a segment's link has besides containers.
func (p *painter) facts(s *graph.Segment) {
	l := p.link(s.Name)
	if l == nil {
		if s.Kind == "bridge" || s.Kind == "master" {
			s.Up = graph.Broken
		}
		return
	}
	if s.Kind == "routed" {
		return // it is a network's name, not a link's
	}
	s.Up = state(l.Up)
	if all := p.addressesOf(l); len(all) > 0 {
		s.Facts = append(s.Facts, strings.Join(all, " "))
	}
	var ports []string
	for _, other := range p.links {
		switch {
		case other.Kind == "vlan" && other.Peer == l.Index && !other.PeerAway:
			words := append([]string{other.Name}, p.addressesOf(other)...)
			s.Facts = append(s.Facts, fmt.Sprintf("%s, VLAN %d", strings.Join(words, " "), other.Data.VLAN))
		case other.Master == l.Index && !slices.Contains(p.ends, other.Name) && !other.PeerAway:
			ports = append(ports, other.Name)
		}
	}
	if len(ports) > 0 {
		s.Facts = append(s.Facts, "ports "+strings.Join(ports, " "))
	}
	if m, err := rtnl.LinkByIndex(p.World.Host, l.Master); l.Master != 0 && err == nil {
		s.Facts = append(s.Facts, fmt.Sprintf("in %s %s", m.Kind, m.Name))
	}
}
