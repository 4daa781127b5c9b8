// Package ptp connects each container to the host by a veth pair of its own, and the host routes for it.
//
// The host gets the gateway's address, so the subnet must belong to this network alone. STATUS and ADD refuse a
// gateway that is the next hop of a route of the host, because the host would lose that route. ADD warns of a subnet
// that another interface of the host also has.
package ptp

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/internal/keys"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the ptp plugin.
var Plugin = sdk.Interface("ptp", "connects a container to the host, which routes for it", want,
	func(conf) []plan.Kind {
		return append([]plan.Kind{link.VethKind("")}, keys.MasqueradeKinds()...)
	})

// conf is what the plugin reads beside "ipam", which it needs, and "dns".
type conf struct {
	keys.Masquerade
	keys.Cable
}

func (c conf) validate(r *sdk.Request) error {
	if !r.L3 {
		return spec.Errorf(spec.CodeConfig,
			"ipam: is missing: ptp routes to the addresses of its containers, so it needs an IPAM plugin, such as "+
				"{\"type\":\"host-local\",\"subnet\":\"10.1.2.0/24\"}")
	}
	if err := c.Cable.Validate(r); err != nil {
		return err
	}
	if err := gateways(r); err != nil {
		return err
	}
	return c.Masquerade.Validate(r)
}

// gateways gives each address without a gateway the first one of its subnet. The host has it on every cable, so
// that it need not be of the subnet, nor of any.
func gateways(r *sdk.Request) error {
	for i, ip := range r.IPs {
		if !ip.Gateway.IsValid() {
			ip.Gateway = ip.Address.Masked().Addr().Next()
			if !ip.Address.Contains(ip.Gateway) || ip.Gateway == ip.Address.Addr() {
				return spec.Errorf(spec.CodeConfig,
					"ipam: gave %v without a gateway, and the first address of its subnet cannot be the gateway; "+
						"configure one, such as 169.254.1.1 or fe80::1", ip.Address)
			}
		}
		if ip.Gateway == ip.Address.Addr() || ip.Gateway.Is4() != ip.Address.Addr().Is4() ||
			ip.Gateway.IsUnspecified() ||
			ip.Gateway.IsMulticast() {
			return spec.Errorf(spec.CodeConfig,
				"ipam: gave %v the gateway %v; want another address of the same family, because the host gets the "+
					"gateway's address",
				ip.Address, ip.Gateway)
		}
		r.IPs[i].Gateway = ip.Gateway
	}
	return nil
}

func want(c conf, r *sdk.Request) (answer sdk.Answer, err error) {
	c.MTU = c.LinkMTU(r)
	if err := c.validate(r); err != nil {
		return answer, err
	}
	host, p, err := c.HostName(r)
	if err != nil {
		return answer, err
	}
	p = append(append(p, c.Masquerade.Required()...), link.Veth{
		Owner: r.Owner, Name: r.IfName, Host: host, MTU: c.MTU, MAC: c.MAC(r), HostMAC: r.HostMAC(),
		Down: c.IPv6 == "off",
	})
	if c.IPv6 == "off" { // before the link is up, so that it never gets an address of its own
		p = append(p, sysctl.IPv6Off{Link: r.IfName}, link.Up{Link: r.IfName})
	}
	for _, ip := range r.IPs {
		gw, at := ip.Gateway, ip.Address.Addr()
		to := addr.Route{Where: resource.Host, Link: host, Dst: netip.PrefixFrom(at, at.BitLen())}
		if at.Is4() { // IPv6 keeps none
			to.Scope, to.HasScope = 254, true // host, as the reference has it
		}
		p = append(p, plan.Shared(sysctl.Forwarding{V6: at.Is6()}),
			addr.Addr{Where: resource.Host, Link: host, Prefix: netip.PrefixFrom(gw, gw.BitLen()), NoDAD: at.Is6(),
				Subnet: ip.Address.Masked()}, to)
	}
	p = append(p, c.Masquerade.Plan(r)...)
	p = append(p, r.Addressing(sdk.Addressing{Link: r.IfName, Port: host, NoDAD: true, ByGateway: true})...)
	return sdk.Answer{Plan: p, IPs: r.IPs, Routes: r.Routes, Gateway: true}, nil
}
