package bridge

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// gatewayLink is where the gateway's addresses go, if it has a VLAN.
func (c conf) gatewayLink() link.VLANGateway {
	return link.VLANGateway{Bridge: c.Bridge, VLAN: c.gatewayVLAN(), MTU: c.MTU}
}

// gateways completes the attachment's addresses and routes with what the bridge, being their gateway, adds.
func (c conf) gateways(r *sdk.Request) {
	if !c.IsGateway {
		return
	}
	for i, ip := range r.IPs {
		r.IPs[i].Gateway = gatewayOf(ip)
	}
	if c.IsDefaultGateway {
		r.Routes = r.WithDefaultRoutes()
	}
}

// gatewayOf returns the gateway of an address: if ipam gives none, the first address of its subnet.
func gatewayOf(ip spec.IP) netip.Addr {
	if ip.Gateway.IsValid() {
		return ip.Gateway
	}
	return ip.Address.Masked().Addr().Next()
}

// prefixesOf returns the gateways of addresses, each once, with the prefix lengths of the addresses.
func prefixesOf(ips []spec.IP) (gateways []netip.Prefix) {
	for _, ip := range ips {
		p := netip.PrefixFrom(gatewayOf(ip), ip.Address.Bits())
		if !slices.Contains(gateways, p) {
			gateways = append(gateways, p)
		}
	}
	return gateways
}

// gatewayPlan is what makes the host the gateway of the attachment's addresses.
func (c conf) gatewayPlan(r *sdk.Request) (p plan.Plan) {
	if !c.IsGateway {
		return nil
	}
	link := c.Bridge
	if g := c.gatewayLink(); g.VLAN != 0 && r.L3 {
		link = g.Name()
		p = append(p, plan.Shared(g))
	}
	own := prefixesOf(r.IPs)
	if len(own) == 0 {
		return p
	}
	all := prefixesOf(slices.Concat(r.Ranges, r.IPs))
	p = append(p, addr.GatewayUse{Owner: r.Owner, Link: link, Gateways: own, Network: all})
	for _, gw := range own {
		p = append(p, addr.Gateway{Owner: r.Owner, Link: link, Prefix: gw, Network: all, Force: c.ForceAddress},
			plan.Shared(sysctl.Forwarding{V6: gw.Addr().Is6()}))
	}
	return p
}
