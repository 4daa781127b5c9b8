// Package sbr routes by source address: packets from an interface's addresses leave by that interface. The interface's
// routes move from the main routing table into tables of their own, including the route to its subnet. So packets from
// other addresses do not leave by the interface, unless addSourceHints keeps the route to the subnet. For an interface
// in a VRF this applies only to destinations without a route in the VRF's table, because that table is asked first;
// the plugin warns of this on stderr.
package sbr

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/routing"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the sbr plugin.
var Plugin = sdk.Chained("sbr", "routes packets from an interface's addresses by that interface", want,
	func(c conf) []plan.Kind {
		table := 0
		if c.Table != nil {
			table = *c.Table
		}
		return []plan.Kind{routing.SourceRoutingKind(table)}
	})

type conf struct {
	// Number of a routing table that already has routes, because the IPAM plugin's routes name it: 1 to 4294967295
	// without 253 to 255. The plugin then only adds rules for the table, and the other keys have no effect. Default:
	// for each address a free table from 100 on, with the interface's routes.
	Table *int `json:"table" want:"1..252|256..4294967295" says:"1 to 4294967295, but not 253 (default), 254 (main) and 255 (local)"`
	// Routers of the default routes in the tables, at most one for IPv4 and one for IPv6. Default: those of the
	// interface's default routes, or else the gateways of its addresses.
	Gateways []string `json:"gateways" want:"address" says:"the IP address of a router, such as 192.0.2.1"`
	// Keep the routes to the interface's subnets in the main table too, with the interface's address as source.
	// Default: false.
	AddSourceHints bool `json:"addSourceHints"`
}

func want(c conf, r *sdk.Request) (answer sdk.Answer, err error) {
	s := routing.SourceRouting{Owner: r.Owner, Hints: c.AddSourceHints}
	known := func(ip spec.IP) bool {
		return slices.ContainsFunc(s.Sources,
			func(src routing.Source) bool { return src.Prefix.Addr() == ip.Address.Addr() })
	}
	for _, ip := range r.ContainerIPs() {
		if !known(ip) {
			s.Sources = append(s.Sources, routing.Source{Prefix: ip.Address, Via: ip.Gateway})
		}
	}
	if c.Table != nil {
		s.Table, s.Hints = *c.Table, false
	}
	if r.Prev != nil && len(s.Sources) == 0 {
		return answer, spec.Errorf(spec.CodeConfig, "prevResult.ips: has no address of %s to route by",
			r.IfName)
	}
	if r.Prev != nil {
		for i, ip := range r.Prev.IPs {
			if of := r.Prev.InterfaceOf(ip); of != nil && !known(ip) {
				answer.Warn("prevResult.ips[%d]: %v is an address of %s, and the plugin does not route its packets: "+
					"it routes only packets from addresses of %s", i, ip.Address, of.Name, r.IfName)
			}
		}
	}
	for i, text := range c.Gateways {
		if err := c.gateway(i, text, &s, r); err != nil {
			return answer, err
		}
	}
	answer.Plan = plan.Plan{s}
	return answer, nil
}

// gateway makes the i-th of the gateways that of all addresses of its family.
func (c conf) gateway(i int, text string, s *routing.SourceRouting, r *sdk.Request) error {
	bad := func(format string, args ...any) error {
		return spec.Errorf(spec.CodeConfig, "gateways[%d]: %q: "+format, append([]any{i, text}, args...)...)
	}
	via, err := netip.ParseAddr(text)
	if err != nil || via.Zone() != "" || via.IsUnspecified() || via.IsMulticast() || via.IsLoopback() {
		return bad("want the IP address of a router, such as 192.0.2.1")
	}
	via = via.Unmap()
	for _, before := range c.Gateways[:i] {
		if other, err := netip.ParseAddr(before); err == nil && other.Unmap().Is4() == via.Is4() {
			return bad("want at most one router of each family, and %s is one", before)
		}
	}
	if c.Table != nil || r.Prev == nil {
		return nil
	}
	var subnets []string
	reached := false
	for j, src := range s.Sources {
		if src.Prefix.Addr().Is4() != via.Is4() {
			continue
		}
		if src.Prefix.Addr() == via {
			return bad("is an address of %s itself; want its router's", r.IfName)
		}
		subnets = append(subnets, src.Prefix.Masked().String())
		reached = reached || src.Prefix.Contains(via) || src.Prefix.IsSingleIP() || via.Is6() &&
			via.IsLinkLocalUnicast()
		s.Sources[j].Via, s.Sources[j].Always = via, true
	}
	switch {
	case len(subnets) == 0:
		return bad("%s has no address of that family in prevResult", r.IfName)
	case !reached:
		return bad("is not in the subnet of %s; want an address in %s", r.IfName, strings.Join(subnets, " or "))
	}
	return nil
}
