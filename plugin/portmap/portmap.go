// Package portmap publishes ports of a container on the host.
package portmap

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the portmap plugin.
var Plugin = sdk.Chained("portmap", "publishes ports of a container on the host", want)

type conf struct {
	Backend              string   `json:"backend"`              // nftables, which is the default
	SNAT                 *bool    `json:"snat"`                 // masquerade what would not come back by itself: from the container itself, its subnet and 127.0.0.1; default true
	MasqAll              bool     `json:"masqAll"`              // masquerade everything that goes to a published port
	MarkMasqBit          *int     `json:"markMasqBit"`          // 0 to 31; without effect, for nftables needs no mark
	ExternalSetMarkChain string   `json:"externalSetMarkChain"` // not supported: iptables only
	ConditionsV4         []string `json:"conditionsV4"`         // further matches for IPv4, in the words of nft(8) or iptables(8)
	ConditionsV6         []string `json:"conditionsV6"`         // the same for IPv6

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

func want(c conf, r *sdk.Request) (plan.Plan, error) {
	pub := resource.Publish{Owner: r.Owner, SNAT: c.SNAT == nil || *c.SNAT, MasqAll: c.MasqAll, Conditions4: c.ConditionsV4, Conditions6: c.ConditionsV6}
	p := plan.Plan{plan.Required(resource.PacketFilter{})}
	if r.Verb == "DEL" {
		return append(p, resource.Publish{Owner: r.Owner}), nil
	}
	if err := c.validate(); err != nil {
		return nil, err
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
		return nil, spec.Errorf(spec.CodeConfig, "runtimeConfig.portMappings: prevResult has no address of %s that a port could lead to", r.IfName)
	}
	for i, m := range c.RuntimeConfig.PortMappings {
		port, err := m.parse(i)
		if err != nil {
			return nil, err
		}
		if r.Prev != nil && port.HostIP.IsValid() && !port.HostIP.IsUnspecified() &&
			(port.HostIP.Is4() && !pub.To4.IsValid() || port.HostIP.Is6() && !pub.To6.IsValid()) {
			return nil, spec.Errorf(spec.CodeConfig, "runtimeConfig.portMappings[%d].hostIP: %s: the container has no address of that family", i, port.HostIP)
		}
		if !slices.ContainsFunc(pub.Ports, port.Equal) { // podman asks twice for one mapping
			pub.Ports = append(pub.Ports, port)
		}
	}
	return append(p, pub), nil
}

func (c conf) validate() error {
	switch {
	case c.Backend != "" && c.Backend != "nftables":
		return spec.Errorf(spec.CodeUnsupported, "backend: %q: this plugin publishes ports by nftables; leave the key out or say \"nftables\"", c.Backend)
	case c.ExternalSetMarkChain != "":
		return spec.Errorf(spec.CodeUnsupported, "externalSetMarkChain: %q: a chain of iptables cannot be used from nftables; remove the key", c.ExternalSetMarkChain)
	case c.MarkMasqBit != nil && (*c.MarkMasqBit < 0 || *c.MarkMasqBit > 31):
		return spec.Errorf(spec.CodeConfig, "markMasqBit: %d: want 0 to 31", *c.MarkMasqBit)
	}
	return nil
}
