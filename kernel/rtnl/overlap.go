package rtnl

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
)

// Overlapping is the text of warnings about overlapping subnets.
const Overlapping = "and the host reaches only one of the two"

// Overlap returns a link other than the network's own whose address or route overlaps the network's subnet. Kind is
// "address" or "route", and prefix is that address or route. Overlap ignores addresses and routes for single
// containers of this program, here and on other nodes, and for the gateway itself. Other is "" if nothing overlaps.
func Overlap(ns *kernel.NS, link string, subnet netip.Prefix) (other, kind string, prefix netip.Prefix, err error) {
	if subnet.Addr().IsLinkLocalUnicast() || subnet.IsSingleIP() {
		return "", "", prefix, nil // which stand on any number of links
	}
	links, err := Links(ns)
	if err != nil {
		return "", "", prefix, err
	}
	others := map[int]*Link{}
	for _, l := range links {
		if l.Name != link {
			others[l.Index] = l
		}
	}
	all, err := AllAddrs(ns)
	if err != nil {
		return "", "", prefix, err
	}
	for _, a := range all {
		// A lone address is the gateway's on other cables.
		if l := others[a.Link]; l != nil && a.Prefix.Masked().Overlaps(subnet.Masked()) &&
			!(a.Prefix.IsSingleIP() && a.Prefix.Addr() == subnet.Addr()) {
			return l.Name, "address", a.Prefix, nil
		}
	}
	routes, err := Routes(ns, RouteFilter{Family: Family(subnet.Addr()), Table: MainTable})
	for _, r := range routes {
		l := others[r.Link]
		if l != nil && r.Dst.IsValid() && !r.Default() && r.Dst.Overlaps(subnet.Masked()) &&
			!(r.Dst.IsSingleIP() && (identity.OfGroup(l.Group) || r.Protocol == identity.RouteProtocol ||
				r.Dst.Addr() == subnet.Addr())) {
			if r.Dst.Bits() >= subnet.Bits() {
				return l.Name, "route", r.Dst, nil
			}
			other, kind, prefix = l.Name, "route", r.Dst // one that goes before the network's own is worse
		}
	}
	return other, kind, prefix, err
}
