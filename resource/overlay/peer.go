package overlay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// RouteProtocol is the number of the origin of the routes ("proto" of ip-route(8)).
const RouteProtocol = identity.RouteProtocol

// A Peer is another node: a neighbour and a forwarding entry for the node, and a route for each of its prefixes. The
// next hop is the link-local address that follows from the MAC, for IPv4 too (RFC 5549): no address of the cluster's
// has to be kept for it, and no two nodes can have the same.
type Peer struct {
	Device   string // empty: there is no tunnel, and Direct leads to all prefixes
	Node     string // name of the node, for people
	MAC      net.HardwareAddr
	Endpoint netip.Addr // of the family of the device's Local
	Prefixes []netip.Prefix

	// Direct has next hops outside of the tunnel, the preferred one first. A prefix goes by the first of its family. An
	// IPv4 prefix goes by one of IPv6 if there is no other. What none can carry goes by the tunnel, whose entries stay.
	Direct []Hop

	// Sealed says that packets to the prefixes go as said here or not at all: without these routes, the kernel refuses
	// them, and does not send them by a default route. A sealed peer may have no route at all.
	Sealed bool

	// Src has this node's own address of each family that containers of the node answer to. The host's packets have it
	// as their source: with another one, a node with rp_filter=1 drops the answers.
	Src []netip.Addr
	MTU int // of the routes in bytes, where it is less than the device's; zero is no opinion
}

// A Hop is a router on a link of the host, or a link that needs none.
type Hop struct {
	Via  netip.Addr // the zero Addr: Link is a tunnel that finds the other end itself
	Link string
}

func (h Hop) String() string {
	return resource.Line(resource.Opt("via", h.Via), "dev host/"+h.Link)
}

// Hop returns the next hop for a prefix. Its link is empty if there is none.
func (p Peer) Hop(dst netip.Prefix) Hop {
	for _, h := range p.Direct {
		if !h.Via.IsValid() || h.Via.Is4() == dst.Addr().Is4() {
			return h
		}
	}
	for _, h := range p.Direct {
		if h.Via.Is6() { // IPv6 has no routes by an IPv4 router
			return h
		}
	}
	return Hop{NextHop(p.MAC), p.Device}
}

// leads reports whether there is to be a route to a prefix.
func (p Peer) leads(dst netip.Prefix) bool { return !p.Sealed || p.Hop(dst).Link != "" }

// NextHop returns the link-local address of a MAC address (RFC 4291, appendix A).
func NextHop(mac net.HardwareAddr) netip.Addr {
	return resource.LinkLocalOf(mac).Addr()
}

func (p Peer) String() string {
	tunnel := ""
	if p.Device != "" {
		tunnel = "dev host/" + p.Device
	}
	var direct []string
	for _, h := range p.Direct {
		direct = append(direct, h.String())
	}
	return resource.Line("peer", p.Node, "lladdr "+p.MAC.String(), resource.Opt("dst", p.Endpoint), tunnel,
		resource.Prefixes("routes", p.Prefixes), strings.Join(direct, " "), resource.Addrs("src", p.Src),
		resource.Opt("mtu", p.MTU), resource.Flag("sealed", p.Sealed))
}

// Traits implements resource.Describer.
func (p Peer) Traits() resource.Traits {
	return resource.Traits{On: resource.Iface{Where: resource.Host, Name: p.Device}, Object: p.Node}
}

// devices returns the device, if there is a tunnel.
func (p Peer) devices() []string {
	if p.Device == "" {
		return nil
	}
	return []string{p.Device}
}

// Ensure implements plan.Resource.
func (p Peer) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	t, err := read(w, p.devices())
	if err != nil {
		return false, err
	}
	changes := t.lacks(p)
	if err := t.apply(changes); err != nil {
		var undo []change
		for _, c := range slices.Backward(changes) {
			if c.done && c.is.Got == spec.Absent {
				c.edit.Drop = true
				undo = append(undo, c)
			}
		}
		return false, errors.Join(err, t.apply(undo))
	}
	return len(changes) > 0, nil
}

// Verify implements plan.Resource.
func (p Peer) Verify(ctx context.Context, w *kernel.World) error {
	t, err := read(w, p.devices())
	if err != nil {
		return err
	}
	var drift resource.Drift
	for _, c := range t.lacks(p) {
		drift.Add(c.is)
	}
	return drift.Err()
}

// Remove implements plan.Remover. The routes go before what they need.
func (p Peer) Remove(ctx context.Context, w *kernel.World) error {
	t, err := read(w, p.devices())
	if resource.ExceptNoLink(err) == nil && err != nil {
		t, err = read(w, nil) // what was on the device went with it
	}
	if err != nil {
		return err
	}
	has := func(c change) bool {
		switch {
		case c.route.Dst.IsValid():
			return slices.Contains(p.Prefixes, c.route.Dst)
		case c.neighbour.Addr == NextHop(p.MAC):
			return true
		}
		return c.neighbour.MAC.String() == p.MAC.String()
	}
	stale := t.surplus(nil)
	return t.apply(slices.DeleteFunc(stale, func(c change) bool { return !has(c) }))
}

// Sync makes the neighbours and forwarding entries of the devices, and the routes of RouteProtocol, those of these
// peers. No two peers have one prefix. It reads the kernel's tables once, and changes only what differs. New entries
// come before their routes, and routes go before their entries. It goes on after an error. It returns what differed.
func Sync(ctx context.Context, w *kernel.World, devices []string, peers []Peer) (spec.Differences, error) {
	t, err := read(w, devices)
	if err != nil {
		return nil, err
	}
	var changes []change
	for _, p := range peers {
		for _, c := range t.lacks(p) {
			c.is.Resource, c.is.Kind, c.is.Object = p.String(), resource.TypeName(p), p.Node
			changes = append(changes, c)
		}
	}
	changes = append(changes, t.surplus(peers)...)
	slices.SortStableFunc(changes, func(a, b change) int { return int(a.phase) - int(b.phase) })
	var found spec.Differences
	for _, c := range changes {
		c.is.Where, c.is.Link = spec.OnHost, t.name(c)
		found = append(found, c.is)
	}
	return found, t.apply(changes)
}

var _ plan.Remover = Peer{}
