package doctor

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// wanted implements trace.Wanted with the attachments in the cache and their plans.
type wanted struct{ *snapshot.Snapshot }

// Masquerades implements trace.Wanted.
func (w wanted) Masquerades(src, dst netip.Addr) bool {
	return slices.ContainsFunc(w.All, func(c attach.Cached) bool {
		return attached.HasAddress(c, src) && !w.Gone(c) && netconf.NetworkOf(w.World, &c).Masquerades(src, dst)
	})
}

// Gateway implements trace.Wanted.
func (w wanted) Gateway(container string, six bool) (none netip.Addr) {
	for _, c := range w.All {
		if c.Result == nil || !attached.SamePath(c.Netns, container) || w.Gone(c) {
			continue
		}
		for _, r := range c.Result.Routes {
			if r.Dst.Bits() != 0 || r.Dst.Addr().Is6() != six || r.Table != nil {
				continue
			}
			if gw := attached.GatewayOf(c, r); gw.IsValid() {
				return gw
			}
		}
	}
	return none
}

// Publisher implements trace.Wanted.
func (w wanted) Publisher(dst netip.Addr, proto byte, port uint16) string {
	for _, c := range w.All {
		if c.Result != nil && len(attached.Mappings(c.Capabilities)) > 0 && !w.Gone(c) &&
			netconf.NetworkOf(w.World, &c).Publishes(dst, proto, port) {
			return Traced(c).Name
		}
	}
	return ""
}

// Unrouted implements trace.Wanted.
func (w wanted) Unrouted(dst netip.Addr) string {
	network := Elsewhere(dst)
	if network == "" {
		return ""
	}
	routes, err := rtnl.Routes(w.Host, rtnl.RouteFilter{Family: rtnl.Family(dst), Table: rtnl.MainTable,
		Protocol: overlay.RouteProtocol})
	isRouted := slices.ContainsFunc(routes, func(r rtnl.Route) bool {
		return r.Type == rtnl.Unicast && r.Dst.Contains(dst)
	})
	if err != nil || isRouted {
		return ""
	}
	return network
}

// Elsewhere names the network of a cluster that has an address on another node.
func Elsewhere(dst netip.Addr) string {
	for _, network := range grant.Networks() {
		g, err := grant.Read(network)
		has := func(p netip.Prefix) bool { return p.Contains(dst) }
		isHere := err == nil && (slices.ContainsFunc(g.Ranges, has) || slices.Contains(g.Pins, dst))
		if err == nil && !isHere && slices.ContainsFunc(g.Prefixes, has) {
			return network
		}
	}
	return ""
}
