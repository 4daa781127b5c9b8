package sdk

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
)

const scopeLink = 253 // RT_SCOPE_LINK

// Addressing describes how a plugin adds the addresses and routes of an attachment to its link.
type Addressing struct {
	Link string
	Port string // the link on the host that has to carry traffic first; empty: none
	// Bridge is the one that Port is of, if its AddressHistory is in the plan before: what is proven to be new there is
	// not announced.
	Bridge string
	NoDAD  bool // no other machine can have the address, or the configuration forbids to ask
	Probe  bool // other machines are asked whether they have the address, whatever NoDAD is
	Up     bool // the link is down, and is to be set up when it has its addresses, which it tells of then

	// Idle is a link that carries nothing before a program opens it, so that there is nothing to be waited for, and
	// no host yet that could be told of the addresses.
	Idle bool

	// On is the link below, which has addresses of the same segment; without a Kind there is none. ByOn is that Link
	// hears no answers, and On does.
	On   link.Master
	ByOn bool

	// ByGateway sends all to the gateways, what is for the addresses' own subnets too: the link leads nowhere else.
	ByGateway bool
}

// Addressing returns the part of a plan that adds the addresses and routes of r to a link, in an order that the kernel
// accepts: IPv6 is turned on, addresses are added, then routes, and then the neighbours are informed.
func (r *Request) Addressing(a Addressing) plan.Plan {
	if len(r.IPs) == 0 {
		return nil
	}
	var p plan.Plan
	a.NoDAD = a.NoDAD && !a.Probe
	if r.Has6() {
		p = append(p, sysctl.EnableIPv6{Link: a.Link, NoDAD: a.NoDAD, DAD: a.Probe})
	}
	put := func(ip spec.IP) addr.Addr {
		return addr.Addr{Link: a.Link, Prefix: ip.Address, NoDAD: a.NoDAD && ip.Address.Addr().Is6(),
			NoPrefixRoute: a.ByGateway}
	}
	if a.Probe { // the kernel asks for IPv6's meanwhile
		for _, ip := range r.IPs {
			if ip.Address.Addr().Is6() {
				p = append(p, put(ip))
			}
		}
		p = append(p, addr.Probe{Link: a.Link, Addrs: r.Prefixes(), Port: a.Port, On: a.On, ByOn: a.ByOn})
	}
	for _, ip := range r.IPs {
		if !a.Probe || ip.Address.Addr().Is4() {
			p = append(p, put(ip))
		}
	}
	if a.Up {
		p = append(p, addr.Notify{Link: a.Link, Addrs: r.Prefixes()}, link.Up{Link: a.Link})
	}
	if a.ByGateway {
		p = append(p, r.byGateway(a.Link)...)
	}
	for _, rt := range r.Routes {
		k := routeBy(r.IPs, a.Link, rt)
		if a.ByGateway && !r.isGateway(k.Via) {
			k.OnLink = k.Via.IsValid() // no route of the link's says so; the host has to answer for it (proxy_arp)
		}
		p = append(p, k)
	}
	if a.Idle {
		return p
	}
	say := addr.Announce{Link: a.Link, Addrs: r.Prefixes(), Port: a.Port}
	if a.Bridge != "" && !a.Probe {
		say.Bridge, say.Ledger = a.Bridge, r.Ledger
	}
	return append(p, say)
}

func (r *Request) isGateway(a netip.Addr) bool {
	return slices.ContainsFunc(r.IPs, func(ip spec.IP) bool { return ip.Gateway == a })
}

// byGateway returns routes to the gateways, and routes through them to the subnets of the addresses. If several
// addresses need the same route, its source is the first of them.
func (r *Request) byGateway(link string) (p plan.Plan) {
	known := map[netip.Prefix]bool{}
	for _, ip := range r.IPs {
		for _, rt := range []addr.Route{
			{Link: link, Dst: netip.PrefixFrom(ip.Gateway, ip.Gateway.BitLen()), Src: ip.Address.Addr()},
			{Link: link, Dst: ip.Address.Masked(), Src: ip.Address.Addr(), Via: ip.Gateway},
		} {
			if rt.Dst.IsValid() && !known[rt.Dst] && rt.Dst.Addr() != ip.Address.Addr() { // no subnet but itself
				known[rt.Dst] = true
				p = append(p, rt)
			}
		}
	}
	return p
}

// routeBy converts a route of a configuration into one of the kernel. If rt has no gateway, it gets the gateway of the
// container's address of the same family (clause P26), unless rt asks for a route on the link: gateway 0.0.0.0 or ::,
// or scope link. Scope link together with a gateway means that the gateway is on the link (onlink), even if no address
// has it in its subnet.
func routeBy(ips []spec.IP, link string, rt spec.Route) addr.Route {
	via := rt.GW
	onLink := rt.Scope != nil && *rt.Scope == scopeLink
	for _, ip := range ips {
		if !via.IsValid() && !onLink && ip.Gateway.IsValid() && ip.Gateway.Is4() == rt.Dst.Addr().Is4() {
			via = ip.Gateway
		}
	}
	if via.IsValid() && via.IsUnspecified() {
		via = netip.Addr{}
	}
	k := addr.Route{Link: link, Dst: rt.Dst, Via: via, MTU: rt.MTU, AdvMSS: rt.AdvMSS, Priority: rt.Priority}
	if rt.Table != nil {
		k.Table = *rt.Table
	}
	switch {
	case onLink && via.IsValid():
		k.OnLink = true // to a router the kernel takes no such scope
	case rt.Scope != nil:
		k.Scope, k.HasScope = *rt.Scope, true
	}
	return k
}
