package addr

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// OfHost reports whether the host has an address.
func OfHost(w *kernel.World, a netip.Addr) bool {
	r, err := rtnl.RouteTo(w.Host, a)
	return err == nil && r.Type == rtnl.Local
}

// spareRouters refuses an address through which the host reaches other networks: a link on the host that has it would
// cut the host off. An address that the host has already is no such address. This is asked first, because it is the
// case for all containers but the first, and the rest lists all routes.
func spareRouters(w *kernel.World, link string, gw netip.Prefix) error {
	if OfHost(w, gw.Addr()) {
		return nil
	}
	routes, err := rtnl.Routes(w.Host, rtnl.RouteFilter{Family: rtnl.Family(gw.Addr())})
	if err != nil {
		return err
	}
	for _, r := range routes {
		// A router's link-local address is its own on its link alone.
		if r.Via != gw.Addr() || gw.Addr().IsLinkLocalUnicast() {
			continue
		}
		by := Route{Where: resource.Host, Dst: r.Dst, Via: r.Via}
		l, err := rtnl.LinkByIndex(w.Host, r.Link)
		if err == nil {
			by.Link = l.Name
		} else if resource.ExceptNoLink(err) != nil {
			return err
		}
		return spec.Errorf(spec.CodeConfig,
			"ipam: gateway %v: is the next hop of a route of this host (%v), which would lead nowhere if host/%s had "+
				"it; "+
				"give the network a subnet of its own. To be on the network of %s itself, a container takes macvlan "+
				"or ipvlan with that for its master, or a bridge that has it for a port, without isGateway",
			gw.Addr(), by, link, by.Link)
	}
	return nil
}

// warnOfOverlap says which other link of the host has an address of the subnet, or a route into it, for the host
// reaches one of the two only.
func warnOfOverlap(w *kernel.World, link string, subnet netip.Prefix) error {
	other, kind, prefix, err := rtnl.Overlap(w.Host, link, subnet)
	if err == nil && other != "" {
		slog.Warn(fmt.Sprintf("subnet %v of link %s overlaps with %s %v of link %s, %s: give each a subnet of its "+
			"own; `fairlead net ls` names the networks", subnet.Masked(), link, kind, prefix, other, rtnl.Overlapping))
	}
	return err
}
