package bridge

import (
	"github.com/fairlead-cni/fairlead/resource/link"
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
