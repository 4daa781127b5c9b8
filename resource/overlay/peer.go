package overlay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// RouteProtocol is the number of the origin of the routes ("proto" of ip-route(8)).
const RouteProtocol = 118

// A Peer is another node: a neighbour and a forwarding entry for the node, and a route for each of its prefixes. The
// next hop is the link-local address that follows from the MAC, for IPv4 too (RFC 5549): no address of the cluster's
// has to be kept for it, and no two nodes can have the same.
type Peer struct {
	Device   string
	Node     string // name of the node, for people
	MAC      net.HardwareAddr
	Endpoint netip.Addr // of the family of the device's Local
	Prefixes []netip.Prefix

	// Src has this node's own address of each family that containers of the node answer to. The host's packets have it
	// as their source: with another one, a node with rp_filter=1 drops the answers.
	Src []netip.Addr
	MTU int // of the routes in bytes, where it is less than the device's; zero is no opinion
}

// NextHop returns the link-local address of a MAC address (RFC 4291, appendix A).
func NextHop(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe,
		13: mac[3], 14: mac[4], 15: mac[5]})
}

func (p Peer) String() string {
	return resource.Line("peer", p.Node, "lladdr "+p.MAC.String(), resource.Opt("dst", p.Endpoint),
		"dev host/"+p.Device, resource.Prefixes("routes", p.Prefixes), resource.Addrs("src", p.Src),
		resource.Opt("mtu", p.MTU))
}

// Traits implements resource.Describer.
func (p Peer) Traits() resource.Traits {
	return resource.Traits{On: resource.Iface{Where: resource.Host, Name: p.Device}, Object: p.Node}
}

// Ensure implements plan.Resource.
func (p Peer) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	t, err := read(w, p.Device)
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
	t, err := read(w, p.Device)
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
	t, err := read(w, p.Device)
	if err != nil {
		return resource.ExceptNoLink(err)
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

// Sync makes the device's neighbours, forwarding entries and routes those of these peers, no two of which have one
// prefix. It reads the kernel's tables once, and changes only what differs. New entries come before their routes, and
// routes go before their entries. It goes on after an error. Found is what differed.
func Sync(ctx context.Context, w *kernel.World, device string, peers []Peer) (found spec.Differences, err error) {
	t, err := read(w, device)
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
	for _, c := range changes {
		c.is.Where, c.is.Link = spec.OnHost, device
		found = append(found, c.is)
	}
	return found, t.apply(changes)
}

var _ plan.Remover = Peer{}
