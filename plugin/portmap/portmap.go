// Package portmap publishes ports of a container on the host. The container must be reachable from the host, as with
// bridge or ptp. The host cannot reach a macvlan or an ipvlan, so no client reaches a port that is published for one;
// the plan and ADD (on stderr) warn of this.
package portmap

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/resource/reference"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the portmap plugin.
var Plugin = sdk.Chained("portmap", "publishes ports of a container on the host", want, func(conf) []plan.Kind {
	return []plan.Kind{
		filter.SharedChainKind(), publish.Kind(), publish.KindIPTables(),
		reference.ChainKind(), reference.PortKind(),
	}
})

type conf struct {
	// What translates the addresses. nftables: the kernel's nf_tables. iptables: chains with the names of the reference
	// plugin, made by the iptables program that has the host's nat table. Default: nftables.
	Backend string `json:"backend" want:"nftables|iptables" says:"\"nftables\", which is the default, or \"iptables\"" code:"2"`
	// Masquerade connections to published ports whose replies would otherwise take another way: from the container
	// itself, from its subnet and from 127.0.0.1. Default: true.
	SNAT *bool `json:"snat"`
	// Masquerade all connections to published ports. The container then sees an address of the host as the client's.
	// Default: false.
	MasqAll bool `json:"masqAll"`
	// With iptables: bit of the packet mark that selects packets to masquerade, 0 to 31. nftables needs no mark.
	// Default: 13.
	MarkMasqBit *int `json:"markMasqBit" want:"0..31" says:"0 to 31"`
	// With iptables: name of a chain of another program that marks packets to masquerade, such as KUBE-MARK-MASQ.
	// Excludes markMasqBit. Default: none.
	ExternalSetMarkChain string `json:"externalSetMarkChain" want:"/^[a-zA-Z0-9_.:-]{1,28}$/" says:"the name of a chain of iptables, of at most 28 letters, digits, _ . : -"`
	// Further conditions for IPv4 packets, such as ["ip", "saddr", "192.0.2.0/24"], in the syntax of nft(8) or
	// iptables(8). With iptables: only that of iptables(8). Default: none.
	ConditionsV4 []string `json:"conditionsV4"`
	// Further conditions for IPv6 packets, as in conditionsV4. Default: none.
	ConditionsV6 []string `json:"conditionsV6"`

	RuntimeConfig struct {
		// Ports of the host to publish, set by the runtime (clause K1). It passes them only if the capabilities of the
		// plugin in the list have {"portMappings": true}.
		PortMappings []mapping `json:"portMappings"`
	} `json:"runtimeConfig"`
}

// mapping is one entry of the capability portMappings (clause K1).
type mapping struct {
	// Port of the host, 1 to 65535. With hostPortEnd: the first port of a range.
	HostPort int `json:"hostPort"`
	// Last port of the range that begins at hostPort. Default: hostPort, a single port.
	HostPortEnd int `json:"hostPortEnd"`
	// Port of the container, 1 to 65535. With hostPortEnd: the first port of a range of the same length.
	ContainerPort int `json:"containerPort"`
	// Last port of the container's range. Optional, because both ranges have the same length.
	ContainerPortEnd int `json:"containerPortEnd"`
	// Protocol: tcp, udp or sctp. Default: tcp.
	Protocol string `json:"protocol"`
	// Address of the host on which the port is published. Default: every address.
	HostIP string `json:"hostIP"`
	// Subnets whose hosts can reach the port, such as ["192.0.2.0/24"]. Processes of this host and the container itself
	// always can. Default: everybody.
	AllowFrom []netip.Prefix `json:"allowFrom"`
}

func want(c conf, r *sdk.Request) (answer sdk.Answer, err error) {
	pub := publish.Ports{Owner: r.Owner, SNAT: c.SNAT == nil || *c.SNAT, MasqAll: c.MasqAll,
		Conditions4: c.ConditionsV4,
		Conditions6: c.ConditionsV6}
	if err := c.validate(); err != nil {
		return answer, err
	}
	for _, ip := range r.ContainerIPs() {
		switch {
		case ip.Address.Addr().Is4() && !pub.To4.IsValid():
			pub.To4 = ip.Address
		case ip.Address.Addr().Is6() && !pub.To6.IsValid():
			pub.To6 = ip.Address
		}
	}
	if r.Prev != nil && len(c.RuntimeConfig.PortMappings) > 0 && !pub.To4.IsValid() && !pub.To6.IsValid() {
		return answer, spec.Errorf(spec.CodeConfig,
			"runtimeConfig.portMappings: prevResult has no address of %s to forward ports to", r.IfName)
	}
	if len(c.RuntimeConfig.PortMappings) > 0 && r.OnOtherLink() {
		answer.Warn("runtimeConfig.portMappings: %s has no host-side interface (as a macvlan, an ipvlan or a host "+
			"device): the ports work only if the host reaches the container through its network; or use bridge or ptp",
			r.IfName)
	}
	known := map[string]bool{}
	for i, m := range c.RuntimeConfig.PortMappings {
		port, err := m.parse(i)
		if err != nil {
			return answer, err
		}
		if r.Prev != nil && port.HostIP.IsValid() && !port.HostIP.IsUnspecified() &&
			(port.HostIP.Is4() && !pub.To4.IsValid() || port.HostIP.Is6() && !pub.To6.IsValid()) {
			return answer, spec.Errorf(spec.CodeConfig,
				"runtimeConfig.portMappings[%d].hostIP: %s: the container has no address of that family", i,
				port.HostIP)
		}
		if text := fmt.Sprint(port.HostIP, " ", port); !known[text] { // podman asks twice for one mapping
			known[text] = true
			pub.Mappings = append(pub.Mappings, port)
		}
	}
	if c.Backend != "iptables" {
		answer.Plan = plan.Plan{plan.Required(filter.PacketFilter{}), pub}
		return answer, nil
	}
	ipt := publish.PortsIPTables{Ports: pub, MarkBit: 13, SetMarkChain: c.ExternalSetMarkChain}
	if c.MarkMasqBit != nil {
		ipt.MarkBit = *c.MarkMasqBit
	}
	answer.Plan = plan.Plan{plan.Required(iptables.Program{Backend: "backend", Table: "nat"}), ipt}
	return answer, nil
}

func (c conf) validate() error {
	switch {
	case c.ExternalSetMarkChain != "" && c.Backend != "iptables":
		return spec.Errorf(spec.CodeUnsupported,
			"externalSetMarkChain: %q: nftables cannot use a chain of iptables; remove the key, or set "+
				"\"backend\": \"iptables\"", c.ExternalSetMarkChain)
	case c.ExternalSetMarkChain != "" && c.MarkMasqBit != nil:
		return spec.Errorf(spec.CodeConfig,
			"externalSetMarkChain and markMasqBit: set one of them; that chain decides what the mark is")
	}
	return nil
}
