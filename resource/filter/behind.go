package filter

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// RoutedBy is the link by which the host reaches the containers of a bridge: the bridge, unless the host is on it by a
// link of its own, as it is in a VLAN. What the packet filter decides of them, it decides at that one.
func RoutedBy(w *kernel.World, br *rtnl.Link, to []netip.Addr) (*rtnl.Link, error) {
	for _, a := range to {
		r, err := rtnl.RouteTo(w.Host, a)
		if err != nil || r.Via.IsValid() || r.Type != rtnl.Unicast {
			continue // not behind a link of this host
		}
		l, err := rtnl.LinkByIndex(w.Host, r.Link)
		if err != nil {
			return nil, err
		}
		if b, err := LeadsTo(w, l); err != nil {
			return nil, err
		} else if l.Index == br.Index || b != nil && b.Index == br.Index {
			return l, nil
		}
	}
	return br, nil
}

// LeadsTo is the bridge that a link of the host's leads to: the other end of the veth pair is a port of it, or the link
// stands on it. It is nil where there is none.
func LeadsTo(w *kernel.World, l *rtnl.Link) (*rtnl.Link, error) {
	if l.Master != 0 && l.Kind == "veth" || l.PeerAway || l.Peer == 0 {
		return nil, nil
	}
	br, err := rtnl.LinkByIndex(w.Host, l.Peer)
	if err == nil && l.Kind == "veth" {
		if br.Master == 0 {
			return nil, nil
		}
		br, err = rtnl.LinkByIndex(w.Host, br.Master)
	}
	if err != nil || br.Kind != "bridge" {
		return nil, resource.ExceptNoLink(err)
	}
	return br, nil
}

// HostsOwn reports whether a port of a bridge is the other end of a link by which the host is on it.
func HostsOwn(links []*rtnl.Link, port *rtnl.Link) bool {
	return port.Kind == "veth" && !port.PeerAway &&
		slices.ContainsFunc(links, func(l *rtnl.Link) bool { return l.Index == port.Peer && l.Master == 0 })
}

// AddrsIn are the addresses of prefixes.
func AddrsIn(list []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range list {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}
