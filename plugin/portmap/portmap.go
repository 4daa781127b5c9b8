// Package portmap publishes ports of a container on the host. The container must be reachable from the host, as with
// bridge or ptp. The host cannot reach a macvlan or an ipvlan, so nobody reaches a port that is published for one; the
// plan and ADD (on stderr) warn of this.
package portmap

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/reference"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the portmap plugin.
var Plugin = sdk.Chained("portmap", "publishes ports of a container on the host", want, func(conf) []plan.Kind {
	return []plan.Kind{
		filter.SharedChainKind(), filter.PublishKind(), filter.PublishIPTablesKind(),
		reference.ChainKind(), reference.PortKind(),
	}
})

type conf struct {
	Backend              string   `json:"backend" want:"nftables|iptables" says:"\"nftables\", which is the default, or \"iptables\"" code:"2"`                                 // nftables, which is the default, or iptables: in the reference's chains, by the program that has table nat on this host
	SNAT                 *bool    `json:"snat"`                                                                                                                                 // masquerade what would not come back by itself: from the container itself, its subnet and 127.0.0.1; default true
	MasqAll              bool     `json:"masqAll"`                                                                                                                              // masquerade everything that goes to a published port
	MarkMasqBit          *int     `json:"markMasqBit" want:"0..31" says:"0 to 31"`                                                                                              // 0 to 31, default 13: the bit of the packet mark by which iptables masquerades; nftables needs none
	ExternalSetMarkChain string   `json:"externalSetMarkChain" want:"/^[a-zA-Z0-9_.:-]{1,28}$/" says:"the name of a chain of iptables, of at most 28 letters, digits, _ . : -"` // with iptables: a chain of somebody else that marks what is to be masqueraded; not with markMasqBit
	ConditionsV4         []string `json:"conditionsV4"`                                                                                                                         // further matches for IPv4, in the words of nft(8) or iptables(8); for iptables, in its own
	ConditionsV6         []string `json:"conditionsV6"`                                                                                                                         // the same for IPv6

	RuntimeConfig struct {
		PortMappings []mapping `json:"portMappings"`
	} `json:"runtimeConfig"`
}

// mapping is one entry of the capability portMappings (clause K1).
type mapping struct {
	HostPort         int            `json:"hostPort"`         // 1 to 65535
	HostPortEnd      int            `json:"hostPortEnd"`      // last port of a range that begins at hostPort; default: hostPort, so one port
	ContainerPort    int            `json:"containerPort"`    // 1 to 65535; with hostPortEnd the first of as many ports
	ContainerPortEnd int            `json:"containerPortEnd"` // the last of them; may be left out, for both ranges are of one length
	Protocol         string         `json:"protocol"`         // tcp (default), udp or sctp
	HostIP           string         `json:"hostIP"`           // default: every address of the host
	AllowFrom        []netip.Prefix `json:"allowFrom"`        // sources that reach the port, beside this host's processes and the container itself; default: all
}

func want(c conf, r *sdk.Request) (answer sdk.Answer, err error) {
	pub := filter.Publish{Owner: r.Owner, SNAT: c.SNAT == nil || *c.SNAT, MasqAll: c.MasqAll, Conditions4: c.ConditionsV4,
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
			"runtimeConfig.portMappings: prevResult has no address of %s that a port could lead to", r.IfName)
	}
	if len(c.RuntimeConfig.PortMappings) > 0 && r.OnOtherLink() {
		answer.Warn("runtimeConfig.portMappings: %s does not hang on the host (a macvlan, an ipvlan, a device of its own): the host has to reach it by its network, or nobody reaches the ports; a bridge or ptp does not have that",
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
				"runtimeConfig.portMappings[%d].hostIP: %s: the container has no address of that family", i, port.HostIP)
		}
		if text := fmt.Sprint(port.HostIP, " ", port); !known[text] { // podman asks twice for one mapping
			known[text] = true
			pub.Ports = append(pub.Ports, port)
		}
	}
	if c.Backend != "iptables" {
		answer.Plan = plan.Plan{plan.Required(filter.PacketFilter{}), pub}
		return answer, nil
	}
	ipt := filter.PublishIPTables{Publish: pub, MarkBit: 13, SetMarkChain: c.ExternalSetMarkChain}
	if c.MarkMasqBit != nil {
		ipt.MarkBit = *c.MarkMasqBit
	}
	answer.Plan = plan.Plan{plan.Required(filter.IPTables{Backend: "backend", Table: "nat"}), ipt}
	return answer, nil
}

func (c conf) validate() error {
	switch {
	case c.ExternalSetMarkChain != "" && c.Backend != "iptables":
		return spec.Errorf(spec.CodeUnsupported,
			"externalSetMarkChain: %q: a chain of iptables cannot be used from nftables; remove the key, or say \"backend\": \"iptables\"", c.ExternalSetMarkChain)
	case c.ExternalSetMarkChain != "" && c.MarkMasqBit != nil:
		return spec.Errorf(spec.CodeConfig,
			"externalSetMarkChain and markMasqBit: set one of them; that chain decides what the mark is")
	}
	return nil
}
