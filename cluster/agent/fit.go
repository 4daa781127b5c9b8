package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// Fit says what of this host overlaps a pool of addresses or a block, of which the node must not use any then. Routes to
// containers of this node are in no way: those of one address, and those within own.
func (a *Agent) Fit(pool netip.Prefix, own []netip.Prefix) error {
	o, err := a.occupants(nil)
	if err != nil {
		return fmt.Errorf("is not compared with the networks of this host: %w", err)
	}
	isOwn := func(p netip.Prefix) bool {
		return slices.ContainsFunc(own, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
	}
	for _, have := range o.networks {
		if p := have.Prefix.Masked(); p.Overlaps(pool) && !isOwn(p) {
			return fmt.Errorf("overlaps the network %v of %s", p, o.linkName(have.Link))
		}
	}
	routes, err := rtnl.Routes(a.World.Host, rtnl.RouteFilter{Family: rtnl.Family(pool.Addr()), Table: rtnl.MainTable})
	if err != nil {
		return fmt.Errorf("is not compared with the routes of this host: %w", err)
	}
	for _, r := range routes {
		isOurs := r.Default() || r.Dst.IsSingleIP() || r.Protocol == overlay.RouteProtocol || isOwn(r.Dst)
		if !isOurs && r.Dst.Overlaps(pool) {
			return fmt.Errorf("overlaps the route to %v by %s", r.Dst, o.linkName(r.Link))
		}
	}
	return nil
}

// NodeIPs returns the addresses by which other nodes reach this host, if no flag says which: those of the links that have
// a default route.
func NodeIPs(host *kernel.NS) (list []netip.Addr, err error) {
	all, err := rtnl.AllAddrs(host)
	if err != nil {
		return nil, err
	}
	for _, like := range families() {
		routes, err := rtnl.Routes(host, rtnl.RouteFilter{Family: rtnl.Family(like), Table: rtnl.MainTable})
		if err != nil {
			return nil, err
		}
		routes = slices.DeleteFunc(routes, func(r rtnl.Route) bool { return r.Dst.Bits() != 0 })
		if len(routes) == 0 {
			continue
		}
		best := slices.MinFunc(routes, func(a, b rtnl.Route) int { return a.Priority - b.Priority })
		i := slices.IndexFunc(all, func(have rtnl.LinkAddr) bool {
			addr := have.Prefix.Addr()
			return have.Link == best.Link && addr.Is4() == like.Is4() && addr.IsGlobalUnicast()
		})
		if i >= 0 {
			list = append(list, all[i].Prefix.Addr())
		}
	}
	return list, nil
}
