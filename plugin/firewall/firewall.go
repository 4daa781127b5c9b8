// Package firewall lets a container's packets through the host, and keeps container networks apart.
package firewall

import (
	"cmp"
	"net"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/reference"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the firewall plugin.
var Plugin = sdk.Chained("firewall", "lets a container's packets through the host, and keeps container networks apart",
	want, func(conf) []plan.Kind {
		return []plan.Kind{
			filter.SharedChainKind(), policy.Kind(), policy.IngressKind(), policy.IsolatedPortKind(),
			policy.FailClosedKind(), forward.Kind(), reference.ForwardKind(),
		}
	})

type conf struct {
	// Where the plugin lets the container's packets through. auto: wherever the host's rules would drop them; nftables,
	// iptables, firewalld: there; none: the plugin changes nothing. Default: auto.
	Backend string `json:"backend" want:"auto|nftables|iptables|firewalld|none" code:"2"`
	// With iptables: name of a chain for rules of the administrator, which is evaluated before the plugin's rules.
	// Default: CNI-ADMIN.
	AdminChain string `json:"iptablesAdminChainName" want:"/^[a-zA-Z0-9_.][a-zA-Z0-9_.-]{0,27}$/" says:"the name of a chain of your own, of at most 28 letters, digits and - _ . characters"`
	// With firewalld: zone that the container's addresses are added to. Default: trusted.
	FirewalldZone string `json:"firewalldZone" want:"/^[a-zA-Z0-9_.][a-zA-Z0-9_.-]{0,16}$/" says:"the name of a zone, of at most 17 letters, digits and - _ . characters"`
	// Who may open connections to the network's containers. open: everybody. same-bridge: not containers of other
	// networks with a policy. isolated: no containers of networks with a policy, not even of the same network. strict:
	// only containers of the same network. Replies and published ports always pass. On ports of Open vSwitch (plugin
	// ovs) only open has an effect: the host's packet filter does not see their packets there. Default: open.
	IngressPolicy string `json:"ingressPolicy" want:"open|same-bridge|isolated|strict"`
}

func want(c conf, r *sdk.Request) (answer sdk.Answer, err error) {
	c.IngressPolicy = cmp.Or(c.IngressPolicy, policy.Open)
	if err := c.validate(); err != nil {
		return answer, err
	}
	if c.Backend == "none" {
		return answer, nil
	}
	if err := servable(r); err != nil {
		return answer, err
	}
	gateway, port := r.GatewayLink()
	if c.IngressPolicy != policy.Open && r.OnOtherLink() {
		answer.Warn("ingressPolicy: %q: the previous plugins list no host-side interface of the container (macvlan, "+
			"ipvlan, tap and host-device have none); ADD fails if it finds none: remove the key, or use bridge or ptp",
			c.IngressPolicy)
	}
	accepts := forward.Forward{Owner: r.Owner, Backend: cmp.Or(c.Backend, forward.Auto), Addrs: addrs(r),
		Link: gateway, Admin: cmp.Or(c.AdminChain, "CNI-ADMIN"), Zone: cmp.Or(c.FirewalldZone, "trusted")}
	var to []netip.Addr
	for _, p := range subnets(r) {
		if a := p.Addr().Unmap(); !slices.Contains(to, a) {
			to = append(to, a)
		}
	}
	isolated := c.IngressPolicy == policy.Isolated && (port != gateway || port == "")
	var p plan.Plan
	p = append(p, plan.Prerequisite(forward.Probe{Backend: accepts.Backend}))
	if c.Backend == forward.IPTables {
		v6 := slices.ContainsFunc(accepts.Addrs, netip.Addr.Is6)
		v4 := slices.ContainsFunc(accepts.Addrs, netip.Addr.Is4)
		p = append(p, policy.IngressIPTables{Owner: r.Owner, Link: gateway, Policy: c.IngressPolicy, V4: v4, V6: v6,
			To: subnets(r)})
	} else {
		p = append(p, plan.Required(filter.PacketFilter{}),
			policy.Ingress{Owner: r.Owner, Link: gateway, Policy: c.IngressPolicy, To: subnets(r)},
			policy.FailClosed{Owner: r.Owner, Link: gateway, Policy: c.IngressPolicy, To: subnets(r)})
	}
	if isolated {
		p = append(p, policy.IsolatedPort{Owner: r.Owner, Link: port, Addrs: to,
			ByRules: c.Backend == forward.IPTables})
		if mac, err := net.ParseMAC(r.PrevMAC()); err == nil {
			p = append(p, link.PinnedMAC{Owner: r.Owner, Port: port, MAC: mac})
		}
	}
	answer.Plan = append(p, accepts)
	return answer, nil
}

// subnets are those of the addresses that the policy is for: of the container's interface, or of whatever else is
// listed where the plugins before give that none.
func subnets(r *sdk.Request) (all []netip.Prefix) {
	ips := r.ContainerIPs()
	if len(ips) == 0 && r.Prev != nil {
		ips = r.Prev.IPs
	}
	for _, ip := range ips {
		all = append(all, ip.Address)
	}
	return all
}

// addrs are all addresses of the result, whichever interface they are listed for: plugins may leave out its sandbox, or
// call it by another name.
func addrs(r *sdk.Request) (all []netip.Addr) {
	if r.Prev == nil {
		return nil
	}
	for _, ip := range r.Prev.IPs {
		all = append(all, ip.Address.Addr().Unmap())
	}
	return all
}

// servable is an error for an address that no packet is forwarded for.
func servable(r *sdk.Request) error {
	for i, a := range addrs(r) {
		if a.IsUnspecified() || a.IsMulticast() {
			return spec.Errorf(spec.CodeConfig,
				"prevResult.ips[%d].address: %v: no packet has it as its source; want the address of an interface",
				i, a)
		}
		if n := r.Prev.IPs[i].Interface; n != nil && (*n < 0 || *n >= len(r.Prev.Interfaces)) {
			return spec.Errorf(spec.CodeConfig,
				"prevResult.ips[%d].interface: %d: prevResult.interfaces has %d entries; want the index of one, or "+
					"leave it out", i, *n, len(r.Prev.Interfaces))
		}
	}
	return nil
}

func (c conf) validate() error {
	if slices.Contains([]string{"INPUT", "FORWARD", "OUTPUT", "ACCEPT", "DROP", "REJECT", "RETURN", "CNI-FORWARD"},
		c.AdminChain) {
		return spec.Errorf(spec.CodeConfig,
			"iptablesAdminChainName: %q: want the name of a chain of your own, of at most 28 letters, digits and - _ "+
				". characters", c.AdminChain)
	}
	if c.Backend == "none" && c.IngressPolicy != policy.Open {
		return spec.Errorf(spec.CodeConfig,
			"ingressPolicy: %q: with backend none, nothing enforces the policy; remove one of the two keys",
			c.IngressPolicy)
	}
	return nil
}
