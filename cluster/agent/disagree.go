package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// A side is what one of two nodes knows of a packet between their containers.
type side struct {
	Node string `json:"node"`
	Way  way    `json:"way"` // to the other node's container

	Other string `json:"other,omitempty"` // node that has the other node's address, as this one knows
	Own   string `json:"own,omitempty"`   // node that has this node's address
	Home  bool   `json:"home,omitempty"`  // this node's routes lead to a container with it, or it is the node's own

	// Key is the public key of this node's WireGuard device, and OtherKey that of the other node's, as this one knows.
	Key      string `json:"key,omitempty"`
	OtherKey string `json:"otherKey,omitempty"`

	Tunnels []tunnel     `json:"tunnels,omitempty"`
	Addrs   []netip.Addr `json:"addrs,omitempty"` // by which other nodes reach this one

	// Admits says that the VXLAN port lets in what the other node sends for its containers.
	Admits bool `json:"admits"`
}

// side returns what this node knows of packets between an address of another node and one of its own.
func (a *Agent) side(s agentstatus.Status, other, own netip.Addr) side {
	is := side{Node: a.Node, Way: sendsTo(a.World.Host, other), Admits: true}
	is.Other, _ = ownerOf(s.Nodes, other)
	is.Own, _ = ownerOf(s.Nodes, own)
	i := slices.IndexFunc(s.Nodes, func(n agentstatus.Node) bool { return n.Name == a.Node })
	if i >= 0 {
		is.Addrs = s.Nodes[i].Endpoints
	}
	is.Home = a.leadsHome(s, own)
	is.Key = a.said().Key
	if i := slices.IndexFunc(s.Nodes, func(n agentstatus.Node) bool { return n.Name == is.Other }); i >= 0 {
		is.OtherKey = s.Nodes[i].PublicKey
	}
	for _, d := range s.Devices {
		if l, err := rtnl.LinkByName(a.World.Host, d.Name); err == nil && tunnelOf(l) != nil {
			is.Tunnels = append(is.Tunnels, *tunnelOf(l))
		}
	}
	return is
}

// leadsHome reports whether the kernel sends packets for an address to this node itself, or to a link that leads to no
// other node.
func (a *Agent) leadsHome(s agentstatus.Status, addr netip.Addr) bool {
	r, err := rtnl.RouteTo(a.World.Host, addr)
	if err != nil || r.Type != rtnl.Unicast {
		return err == nil && r.Type == rtnl.Local
	}
	l, err := rtnl.LinkByIndex(a.World.Host, r.Link)
	isUplink := func(d agentstatus.Device) bool { return d.Uplink == l.Name }
	return err == nil && !overlay.Made(l) && !slices.ContainsFunc(s.Devices, isUplink)
}

// disagreements returns what two nodes know differently of a packet from here to there.
func disagreements(p agentstatus.Packet, here, there side) (all []agentstatus.Disagreement) {
	add := func(stops bool, format string, args ...any) {
		all = append(all, agentstatus.Disagreement{Text: fmt.Sprintf(format, args...), Stops: stops})
	}
	switch {
	case there.Own == there.Node && !there.Home:
		add(true, "%s has %v at %s, and no container of %[3]s has it", here.Node, p.Dst, there.Node)
	case there.Own != there.Node:
		add(true, "%s has %v at %s, and %[3]s has it at %[4]s", here.Node, p.Dst, there.Node, named(there.Own))
	}
	isOwn := here.Own == here.Node
	if isOwn && there.Other != here.Node {
		add(true, "%s has %v at itself, and %s has it at %s", here.Node, p.Src, there.Node, named(there.Other))
	}
	sends(here, there, p.Dst, add)
	if isOwn && there.Other == here.Node {
		sends(there, here, p.Src, add)
	}
	if !there.Admits {
		add(true, "the filter of the VXLAN port of %s does not let in what %s sends from %v for %v", there.Node, here.Node,
			here.Way.Tunnel.Local, p.Src)
	}
	if to, back := here.Way.MTU, there.Way.MTU; to != 0 && back != 0 && to != back {
		add(false, "packets from %s to %s may have %s bytes, and those back %s", here.Node, there.Node, thousands(to),
			thousands(back))
	}
	return all
}

// named is a node, or none.
func named(node string) string {
	if node == "" {
		return "no node"
	}
	return node
}

// sends adds what differs between how one node sends to an address of another, and how that one receives.
func sends(from, to side, dst netip.Addr, add func(stops bool, format string, args ...any)) {
	w := from.Way
	switch {
	case w.Link == "":
		add(true, "%s has no route to %v, which is at %s", from.Node, dst, to.Node)
		return
	case w.Encrypted && to.Key == "":
		add(true, "%s sends to %s by WireGuard, and %[2]s has no device for that", from.Node, to.Node)
		return
	case w.Encrypted && from.OtherKey != to.Key:
		add(true, "%s encrypts for the key %s, and %s has %s", from.Node, from.OtherKey, to.Node, to.Key)
		return
	case w.Encrypted:
		return
	case w.Tunnel == nil && slices.Contains(to.Addrs, w.Via):
		return
	case w.Tunnel == nil:
		add(true, "%s sends to %v by %s to %v, and %s has %v", from.Node, dst, w.Link, w.Via, to.Node, to.Addrs)
		return
	}
	is := func(t tunnel) bool { return t.Local.Is4() == w.Tunnel.Local.Is4() }
	i := slices.IndexFunc(to.Tunnels, is)
	if i < 0 {
		add(true, "%s sends to %s by VXLAN, and %[2]s has no device for that", from.Node, to.Node)
		return
	}
	t := to.Tunnels[i]
	if w.Tunnel.ID != t.ID || w.Tunnel.Port != t.Port {
		add(true, "%s sends VXLAN id %d to port %d, and %s has id %d and port %d", from.Node, w.Tunnel.ID, w.Tunnel.Port, to.Node,
			t.ID, t.Port)
	}
	if w.MAC != t.MAC {
		add(true, "%s sends to the MAC address %s, and %s of %s has %s", from.Node, w.MAC, t.Name, to.Node, t.MAC)
	}
	if !slices.Contains(to.Addrs, w.Endpoint) {
		add(true, "%s sends to %v, and %s has %v", from.Node, w.Endpoint, to.Node, to.Addrs)
	}
}
