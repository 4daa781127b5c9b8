package bridge

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// gatewayLink is where the gateway's addresses go, if it has a VLAN.
func (c conf) gatewayLink() resource.VLANGateway {
	return resource.VLANGateway{Bridge: c.Bridge, VLAN: c.gatewayVLAN(), MTU: c.MTU}
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
	if !c.IsDefaultGateway || r.Verb != "ADD" {
		return
	}
	for _, ip := range r.IPs {
		all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if ip.Address.Addr().Is4() {
			all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		known := false
		for _, rt := range r.Routes {
			known = known || rt.Dst == all && rt.GW.IsValid()
		}
		if !known {
			r.Routes = append(r.Routes, spec.Route{Dst: all, GW: ip.Gateway})
		}
	}
}
