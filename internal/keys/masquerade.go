package keys

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/reference"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Masquerade has the keys of plugins that can masquerade the connections of their containers.
type Masquerade struct {
	// Masquerade connections that leave the network: other machines see an address of the host instead of the
	// container's. Default: false.
	IPMasq bool `json:"ipMasq"`
	// What masquerades. nftables: the kernel's nf_tables. iptables: a chain with the name of the reference plugin's,
	// made by the iptables program that has the host's nat table. Default: nftables.
	IPMasqBackend string `json:"ipMasqBackend" want:"nftables|iptables" says:"\"nftables\", which is the default, or \"iptables\"" code:"2"`
	// Destinations that see the container's own address, such as ["10.0.0.0/8"]. Default: none beside the network
	// itself and, with the IPAM plugin cluster, the containers of all nodes of the cluster. The backend iptables does
	// not know those, and needs their range here.
	MasqExcept []netip.Prefix `json:"masqExcept"`
	// Destinations that always see the host's address, even if they are in the network or in masqExcept. Default: none.
	MasqForce []netip.Prefix `json:"masqForce"`
	// Addresses of this host to masquerade with, at most one of each family. Default: the address of the interface by
	// which a packet leaves.
	SnatTo []netip.Addr `json:"snatTo"`
}

// Validate returns an error with code 7 for keys that have no effect without ipMasq, for addresses in snatTo that
// cannot be a source, and for a backend that would masquerade connections between the nodes of a cluster.
func (m Masquerade) Validate(r *sdk.Request) error {
	switch {
	case m.IPMasq && m.IPMasqBackend == "iptables" && r.OfCluster() && len(m.MasqExcept) == 0:
		return spec.Errorf(spec.CodeConfig,
			"ipMasqBackend: \"iptables\": does not know the containers of other nodes, which ipam.type \"cluster\" "+
				"has; remove the key, or set masqExcept to the range of all nodes' containers, such as "+
				"[\"10.244.0.0/16\"]")
	case !m.IPMasq && len(m.MasqForce) > 0:
		return spec.Errorf(spec.CodeConfig,
			"masqForce: %v: has no effect without ipMasq; set ipMasq, or remove the key", m.MasqForce)
	case !m.IPMasq && len(m.SnatTo) > 0:
		return spec.Errorf(spec.CodeConfig,
			"snatTo: %v: has no effect without ipMasq; set ipMasq, or remove the key", m.SnatTo)
	}
	return masquerade.ValidSNATTo(m.SnatTo)
}

// WarnIdle warns that ipMasq has no effect for an interface without addresses.
func (m Masquerade) WarnIdle(a *sdk.Answer) {
	if m.IPMasq {
		a.Warn("ipMasq: true: has no effect: ipam has no type, so there is no address to masquerade")
	}
}

// Required returns what masquerading needs from the host: the addresses of snatTo, and iptables if it is the backend.
func (m Masquerade) Required() (p plan.Plan) {
	if len(m.SnatTo) > 0 {
		p = append(p, plan.Required(masquerade.HostAddrs(m.SnatTo)))
	}
	if m.IPMasq && m.IPMasqBackend == "iptables" {
		p = append(p, plan.Required(iptables.Program{Backend: "ipMasqBackend", Table: "nat"}))
	}
	return p
}

// MasqueradeKinds returns the kinds of everything that Plan may contain, for both backends, and of what the reference
// plugins made.
func MasqueradeKinds() []plan.Kind {
	return []plan.Kind{
		filter.SharedChainKind(), masquerade.Kind(), masquerade.KindIPTables(), reference.MasqueradeKind(),
	}
}

// Plan returns the masquerading of r's addresses by the configured backend.
func (m Masquerade) Plan(r *sdk.Request) plan.Plan {
	k := masquerade.Sources{Owner: r.Owner, From: r.Prefixes(), Except: slices.Concat(otherSubnets(r), m.MasqExcept),
		Force: m.MasqForce, SNATTo: m.SnatTo, Cluster: r.OfCluster()}
	switch {
	case !m.IPMasq:
		return nil
	case m.IPMasqBackend == "iptables":
		return plan.Plan{masquerade.SourcesIPTables{Sources: k}}
	}
	return plan.Plan{k}
}

// otherSubnets returns the subnets of the network that none of r's addresses is in.
func otherSubnets(r *sdk.Request) (others []netip.Prefix) {
	if len(r.IPs) == 0 {
		return nil
	}
	own := r.Prefixes()
	for _, ip := range r.Ranges {
		subnet := ip.Address.Masked()
		isOwn := slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Masked() == subnet })
		if !isOwn && !slices.Contains(others, subnet) {
			others = append(others, subnet)
		}
	}
	return others
}
