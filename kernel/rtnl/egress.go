package rtnl

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
)

// Egress returns the link of the default route: that of IPv4 if there is one, otherwise that of IPv6. A route with
// several next hops counts by its first one. The error is ErrNoLink if there is no default route.
func Egress(ns *kernel.NS) (*Link, error) {
	for _, fam := range []uint8{IPv4, IPv6} {
		routes, err := Routes(ns, RouteFilter{Family: fam, Table: MainTable})
		if err != nil {
			return nil, err
		}
		var best *Route
		for i, r := range routes {
			better := best == nil || r.Dst.Bits() > best.Dst.Bits() ||
				r.Dst.Bits() == best.Dst.Bits() && r.Priority < best.Priority
			if r.Default() && r.Type == Unicast && r.Link != 0 && better {
				best = &routes[i]
			}
		}
		if best != nil {
			return LinkByIndex(ns, best.Link)
		}
	}
	return nil, fmt.Errorf("there is no default route: %w", ErrNoLink)
}

// EgressMTU returns the smallest MTU of the default routes of both families and of their links, in bytes. It returns
// 0 if there is no default route.
func EgressMTU(ns *kernel.NS) (int, error) {
	least := 0
	for _, fam := range []uint8{IPv4, IPv6} {
		routes, err := Routes(ns, RouteFilter{Family: fam, Table: MainTable})
		if err != nil {
			return 0, err
		}
		for _, r := range routes {
			if !r.Default() || r.Type != Unicast || r.Link == 0 {
				continue
			}
			l, err := LinkByIndex(ns, r.Link)
			if err != nil {
				return 0, err
			}
			for _, mtu := range []int{l.MTU, r.MTU} {
				if mtu > 0 && (least == 0 || mtu < least) {
					least = mtu
				}
			}
		}
	}
	return least, nil
}
