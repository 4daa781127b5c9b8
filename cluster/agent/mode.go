package agent

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// A Mode says how packets to containers of other nodes travel.
type Mode string

// The modes.
const (
	VXLAN      Mode = "vxlan"       // through the tunnel
	Auto       Mode = "auto"        // as Direct to the nodes that say that packets of containers arrive so
	Direct     Mode = "direct"      // by the addresses of nodes that are on the same link, and else through the tunnel
	DirectOnly Mode = "direct-only" // by the addresses of nodes, all of which have to be on the same link
	WireGuard  Mode = "wireguard"   // encrypted, through the tunnel of WireGuard
)

// ParseMode returns the mode of a name.
func ParseMode(name string) (Mode, error) {
	switch m := Mode(name); m {
	case VXLAN, Auto, Direct, DirectOnly, WireGuard:
		return m, nil
	}
	return "", fmt.Errorf("%q: want vxlan, auto, direct, direct-only or wireguard", name)
}

// A NotOnLink says that a node is not on the link of an uplink, and may not be reached through the tunnel.
type NotOnLink struct {
	Node      string
	Endpoints []netip.Addr
	Subnets   []netip.Prefix // of the uplinks
	Prefix    netip.Prefix   // that is not reachable
}

func (e NotOnLink) Error() string {
	return fmt.Sprintf("node %s has %v, and is not on the same link as this node, which is in %v: nothing leads to %v "+
		"with --mode direct-only; use --mode direct, or give the node an address on the link", e.Node, e.Endpoints,
		e.Subnets, e.Prefix)
}

// hops returns the next hops to a node that is on the same link.
func hops(n directory.Node, ups []uplink) (direct []overlay.Hop) {
	for _, up := range ups {
		if to := n.Of(up.addr); up.attached() && len(to) > 0 && up.subnet.Contains(to[0]) {
			direct = append(direct, overlay.Hop{Via: to[0], Link: up.name})
		}
	}
	return direct
}

// shorten gives a peer the next hops that the mode allows. Tunnel is the MTU of its tunnel.
func (a *Agent) shorten(p *overlay.Peer, n directory.Node, ups []uplink, tunnel int) error {
	switch {
	case a.Mode == WireGuard:
		p.Device, p.Direct, p.Sealed = "", []overlay.Hop{{Link: a.Tunnel.Device}}, true
		return nil
	case a.Mode == Direct, a.Mode == DirectOnly:
	case a.Mode == Auto && a.paths.direct(n.Name):
	default:
		return nil
	}
	p.Direct = hops(n, ups)
	if a.Mode == DirectOnly {
		var subnets []netip.Prefix
		for _, up := range ups {
			if up.attached() {
				subnets = append(subnets, up.subnet)
			}
		}
		p.Device = ""
		for _, dst := range p.Prefixes {
			if p.Hop(dst).Link == "" {
				return NotOnLink{p.Node, n.Endpoints, subnets, dst}
			}
		}
		return nil
	}
	// Packets are of one size by both ways, so that a change of the way cuts off none.
	if len(p.Direct) > 0 {
		p.MTU = tunnel
	}
	return nil
}

// direct reports whether no packet to a peer's containers goes through the tunnel.
func direct(p overlay.Peer) bool {
	for _, dst := range p.Prefixes {
		if p.Hop(dst).Link == p.Device {
			return false
		}
	}
	return true
}
