package rtnl

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
)

// Egress is the link that packets for the rest of the world leave by: that of the default route, of IPv4 if there is
// one, else of IPv6; of its first next hop where it has several. Without a default route it is ErrNoLink.
func Egress(ns *kernel.NS) (*Link, error) {
	for _, fam := range []uint8{IPv4, IPv6} {
		routes, err := Routes(ns, RouteFilter{Family: fam, Table: MainTable})
		if err != nil {
			return nil, err
		}
		var best *Route
		for i, r := range routes {
			if r.Dst.Bits() == 0 && r.Type == Unicast && r.Link != 0 && (best == nil || r.Priority < best.Priority) {
				best = &routes[i]
			}
		}
		if best != nil {
			return LinkByIndex(ns, best.Link)
		}
	}
	return nil, fmt.Errorf("there is no default route: %w", ErrNoLink)
}

// EgressMTU is the least MTU on the way out by a default route of either family, or zero where there is no
// default route.
func EgressMTU(ns *kernel.NS) (int, error) {
	least := 0
	for _, fam := range []uint8{IPv4, IPv6} {
		routes, err := Routes(ns, RouteFilter{Family: fam, Table: MainTable})
		if err != nil {
			return 0, err
		}
		for _, r := range routes {
			if r.Dst.Bits() != 0 || r.Type != Unicast || r.Link == 0 {
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
