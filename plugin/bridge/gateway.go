package bridge

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/sdk"
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
		if !ip.Gateway.IsValid() {
			r.IPs[i].Gateway = ip.Address.Masked().Addr().Next()
		}
	}
	if c.IsDefaultGateway {
		r.Routes = r.WithDefaultRoutes()
	}
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
	for _, ip := range r.IPs {
		p = append(p,
			plan.Shared(addr.Gateway{Link: link, Prefix: netip.PrefixFrom(ip.Gateway, ip.Address.Bits()),
				Force: c.ForceAddress}),
			plan.Shared(sysctl.Forwarding{V6: ip.Address.Addr().Is6()}))
	}
	return p
}
