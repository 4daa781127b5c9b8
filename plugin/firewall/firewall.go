// Package firewall lets a container's packets through the host, and keeps container networks apart.
package firewall

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the firewall plugin.
var Plugin = sdk.Chained("firewall", "lets a container's packets through the host, and keeps container networks apart", want)

type conf struct {
	Backend       string `json:"backend"`                // where the host's packet filter is told to let the container's packets through: auto (default), nftables, iptables, firewalld; none touches nothing
	AdminChain    string `json:"iptablesAdminChainName"` // the administrator's chain, asked before ours where iptables is used; default CNI-ADMIN
	FirewalldZone string `json:"firewalldZone"`          // the zone that gets the container's addresses where firewalld is used; default trusted
	IngressPolicy string `json:"ingressPolicy"`          // who may send to the network's containers: open (default), same-bridge, isolated, strict
}

func want(c conf, r *sdk.Request) (plan.Plan, error) {
	c.IngressPolicy = sdk.First(c.IngressPolicy, resource.PolicyOpen)
	if r.Verb == "DEL" { // whatever it was
		return plan.Plan{resource.Ingress{Owner: r.Owner}, resource.IsolatedPort{Owner: r.Owner}, resource.Closed{Owner: r.Owner}, resource.Forward{Owner: r.Owner},
			resource.FormerFirewall{Owner: r.Owner, Addrs: addrs(r)}}, nil
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Backend == "none" {
		return nil, nil
	}
	link, port := links(r)
	if c.IngressPolicy != resource.PolicyOpen && r.OnOtherLink() {
		r.Warn("ingressPolicy: %q: the plugins before list no link on the host that the container's packets pass, as macvlan, ipvlan, tap and host-device have none; ADD is refused where it finds none: leave the key out, or use bridge or ptp", c.IngressPolicy)
	}
	forward := resource.Forward{Owner: r.Owner, Backend: sdk.First(c.Backend, resource.BackendAuto), Addrs: addrs(r), Link: link, Admin: sdk.First(c.AdminChain, "CNI-ADMIN"), Zone: sdk.First(c.FirewalldZone, "trusted")}
	isolated := c.IngressPolicy == resource.PolicyIsolated && (port != link || port == "")
	var p plan.Plan
	if r.Verb == "STATUS" {
		p = append(p, plan.Required(resource.Passage{Backend: forward.Backend}))
	}
	if c.Backend == resource.BackendIPTables {
		v6 := slices.ContainsFunc(forward.Addrs, netip.Addr.Is6)
		v4 := slices.ContainsFunc(forward.Addrs, netip.Addr.Is4)
		p = append(p, resource.IPTIngress{Owner: r.Owner, Link: link, Policy: c.IngressPolicy, V4: v4, V6: v6, To: forward.Addrs})
	} else {
		p = append(p, plan.Required(resource.PacketFilter{}), resource.Ingress{Owner: r.Owner, Link: link, Policy: c.IngressPolicy, To: forward.Addrs},
			resource.Closed{Owner: r.Owner, Link: link, Policy: c.IngressPolicy, Subnets: subnets(r)})
	}
	if isolated {
		p = append(p, resource.IsolatedPort{Owner: r.Owner, Link: port, UnlessRules: c.Backend == resource.BackendIPTables, To: forward.Addrs})
	}
	return append(p, forward), nil
}

// subnets are those of the container's addresses.
func subnets(r *sdk.Request) (all []netip.Prefix) {
	for _, ip := range r.ContainerIPs() {
		all = append(all, ip.Address)
	}
	return all
}

// addrs are the container's addresses.
func addrs(r *sdk.Request) (all []netip.Addr) {
	for _, ip := range r.ContainerIPs() {
		all = append(all, ip.Address.Addr().Unmap())
	}
	return all
}

// links are what the container's packets come through: the bridge, or the gateway of its VLAN there, and its port; or a
// link of its own on the host. The container's veth says which that is, whatever else the result lists.
func links(r *sdk.Request) (link, port string) {
	bridge := ""
	if r.Peer != nil {
		bridge = r.Peer.Master
	}
	for _, l := range r.HostLinks {
		switch {
		case r.Peer == nil && l.Kind == "bridge" && bridge == "":
			bridge = l.Name
		case r.IsVLANGateway(l):
			link = l.Name
		}
	}
	if r.Peer != nil {
		if bridge == "" {
			link = r.Peer.Name
		}
		return sdk.First(link, bridge), r.Peer.Name
	}
	link = sdk.First(link, bridge)
	for _, l := range r.HostLinks {
		switch {
		case l.Kind == "bridge", r.IsVLANGateway(l):
		case link == "":
			return sdk.First(l.Master, l.Name), l.Name
		case l.Master == bridge:
			return link, l.Name
		}
	}
	return link, ""
}

func (c conf) validate() error {
	if !slices.Contains([]string{"", "auto", "nftables", "iptables", "firewalld", "none"}, c.Backend) {
		return spec.Errorf(spec.CodeUnsupported, "backend: %q: want auto, nftables, iptables, firewalld or none", c.Backend)
	}
	if !slices.Contains([]string{resource.PolicyOpen, resource.PolicySameBridge, resource.PolicyIsolated, resource.PolicyStrict}, c.IngressPolicy) {
		return spec.Errorf(spec.CodeConfig, "ingressPolicy: %q: want open, same-bridge, isolated or strict", c.IngressPolicy)
	}
	if !word(c.AdminChain, 28) || slices.Contains([]string{"INPUT", "FORWARD", "OUTPUT", "ACCEPT", "DROP", "REJECT", "RETURN", "CNI-FORWARD"}, c.AdminChain) {
		return spec.Errorf(spec.CodeConfig, "iptablesAdminChainName: %q: want the name of a chain of your own, of at most 28 letters, digits and - _ . characters", c.AdminChain)
	}
	if !word(c.FirewalldZone, 17) {
		return spec.Errorf(spec.CodeConfig, "firewalldZone: %q: want the name of a zone, of at most 17 letters, digits and - _ . characters", c.FirewalldZone)
	}
	if c.Backend == "none" && c.IngressPolicy != resource.PolicyOpen {
		return spec.Errorf(spec.CodeConfig, "ingressPolicy: %q: backend none leaves the packet filter alone, so nothing would enforce it; remove one of the two", c.IngressPolicy)
	}
	return nil
}

// word reports whether a name is one that other programs take, or empty, which is the default.
func word(name string, most int) bool {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.'
	}
	return len(name) <= most && !strings.HasPrefix(name, "-") && strings.IndexFunc(name, func(r rune) bool { return !plain(r) }) < 0
}
