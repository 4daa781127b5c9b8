package kernel

import "fmt"

// Egress is the link that packets for the rest of the world leave by: that of the default route, of IPv4 if there is
// one, else of IPv6; of its first next hop where it has several. Without a default route it is ErrNoLink.
func (ns *NS) Egress() (*Link, error) {
	for _, fam := range []uint8{IPv4, IPv6} {
		routes, err := ns.Routes(RouteFilter{Family: fam, Table: MainTable})
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
			return ns.LinkAt(best.Link)
		}
	}
	return nil, fmt.Errorf("there is no default route: %w", ErrNoLink)
}
