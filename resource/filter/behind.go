package filter

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// RoutedBy returns the link through which the host reaches the containers of a bridge. This is the bridge, or the
// host's own link into a VLAN of the bridge. Rules of the packet filter for the containers name this link.
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

// LeadsTo returns the bridge that a link of the host leads to: a port of the bridge is its veth peer, or the link is
// stacked on the bridge. It returns nil if there is none.
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

// HostsOwn reports whether a port of a bridge is the veth peer of a link of the host itself.
func HostsOwn(links []*rtnl.Link, port *rtnl.Link) bool {
	return port.Kind == "veth" && !port.PeerAway &&
		slices.ContainsFunc(links, func(l *rtnl.Link) bool { return l.Index == port.Peer && l.Master == 0 })
}
