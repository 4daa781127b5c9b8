package agent

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// A way is how this host's kernel sends to an address.
type way struct {
	Link string     `json:"link,omitempty"` // empty: there is no route
	Via  netip.Addr `json:"via,omitzero"`   // the next hop
	MTU  int        `json:"mtu,omitempty"`  // in bytes

	// Encrypted says that Link is this agent's WireGuard device.
	Encrypted bool `json:"encrypted,omitempty"`

	// Of a VXLAN device: the device itself, and the MAC address and the endpoint that packets to the address go to.
	Tunnel   *tunnel    `json:"tunnel,omitempty"`
	MAC      string     `json:"mac,omitempty"`
	Endpoint netip.Addr `json:"endpoint,omitzero"`
}

// A tunnel is a VXLAN device, as the kernel has it.
type tunnel struct {
	Name  string     `json:"name"`
	Local netip.Addr `json:"local"`
	ID    uint32     `json:"id"`
	Port  uint16     `json:"port"`
	MAC   string     `json:"mac"`
	MTU   int        `json:"mtu"`
}

// tunnelOf returns the device of a link. Nil: the link is another one.
func tunnelOf(l *rtnl.Link) *tunnel {
	v := l.Data.VXLAN
	if v == nil {
		return nil
	}
	return &tunnel{Name: l.Name, Local: v.Local, ID: v.ID, Port: v.Port, MAC: l.MAC.String(), MTU: l.MTU}
}

// sendsTo returns how the kernel sends to an address.
func sendsTo(ns *kernel.NS, dst netip.Addr) (w way) {
	r, err := rtnl.RouteTo(ns, dst)
	if err != nil || r.Type != rtnl.Unicast {
		return w
	}
	l, err := rtnl.LinkByIndex(ns, r.Link)
	if err != nil {
		return w
	}
	w.Link, w.MTU, w.Tunnel = l.Name, cmp.Or(r.MTU, l.MTU), tunnelOf(l)
	w.Encrypted = w.Tunnel == nil && overlay.Made(l)
	w.Via = dst
	if r.Via.IsValid() {
		w.Via = r.Via
	}
	if w.Tunnel == nil {
		return w
	}
	is := func(n rtnl.Neighbour) bool { return n.Addr == w.Via && len(n.MAC) > 0 }
	if n, found := entryOf(ns, rtnl.Family(w.Via), l.Index, is); found {
		w.MAC = n.MAC.String()
	}
	is = func(n rtnl.Neighbour) bool { return n.MAC.String() == w.MAC }
	if n, found := entryOf(ns, rtnl.ForwardingTable, l.Index, is); found {
		w.Endpoint = n.Addr
	}
	return w
}

// entryOf returns the first neighbour or forwarding entry of a link that is meant.
func entryOf(ns *kernel.NS, family uint8, link int, is func(rtnl.Neighbour) bool) (n rtnl.Neighbour, found bool) {
	list, _ := rtnl.NeighbourMessages(ns, family, link)
	for _, m := range list {
		if n := m.Neighbour(); is(n) {
			return n, true
		}
	}
	return n, false
}

// ownerOf returns the node whose containers have an address, and the prefix.
func ownerOf(nodes []agentstatus.Node, addr netip.Addr) (name string, of netip.Prefix) {
	for _, n := range nodes {
		i := slices.IndexFunc(n.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
		if i >= 0 {
			return n.Name, n.Prefixes[i]
		}
	}
	return "", netip.Prefix{}
}
