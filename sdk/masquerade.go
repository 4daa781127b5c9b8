package sdk

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/reference"
	"github.com/fairlead-cni/fairlead/spec"
)

// Masquerade are the keys of a plugin that can give what leaves its network the host's address.
type Masquerade struct {
	// Masquerade connections that leave the network: other machines see an address of the host instead of the
	// container's. Default: false.
	IPMasq bool `json:"ipMasq"`
	// What masquerades. nftables: the kernel's nf_tables. iptables: a chain with the name of the reference plugin's,
	// made by the iptables program that has the host's nat table. Default: nftables.
	IPMasqBackend string `json:"ipMasqBackend" want:"nftables|iptables" says:"\"nftables\", which is the default, or \"iptables\"" code:"2"`
	// Destinations that see the container's own address, such as ["10.0.0.0/8"]. Default: none beside the network
	// itself.
	MasqExcept []netip.Prefix `json:"masqExcept"`
	// Destinations that always see the host's address, even if they are in the network or in masqExcept. Default: none.
	MasqForce []netip.Prefix `json:"masqForce"`
	// Addresses of this host to masquerade with, at most one of each family. Default: the address of the interface by
	// which a packet leaves.
	SnatTo []netip.Addr `json:"snatTo"`
}

// Validate refuses what would go without effect, so that nobody believes in it.
func (m Masquerade) Validate() error {
	switch {
	case !m.IPMasq && len(m.MasqForce) > 0:
		return spec.Errorf(spec.CodeConfig,
			"masqForce: %v: nothing is masqueraded without ipMasq; set it, or remove the key", m.MasqForce)
	case !m.IPMasq && len(m.SnatTo) > 0:
		return spec.Errorf(spec.CodeConfig,
			"snatTo: %v: nothing is masqueraded without ipMasq; set it, or remove the key", m.SnatTo)
	}
	return masquerade.ValidSNATTo(m.SnatTo)
}

// WarnIdle is for a link without addresses.
func (m Masquerade) WarnIdle(a *Answer) {
	if m.IPMasq {
		a.Warn("ipMasq: true: goes without effect: ipam has no type, so there is no address to masquerade")
	}
}

// Required is what the host has to have for it.
func (m Masquerade) Required() (p plan.Plan) {
	if len(m.SnatTo) > 0 {
		p = append(p, plan.Required(masquerade.HostAddrs(m.SnatTo)))
	}
	if m.IPMasq && m.IPMasqBackend == "iptables" {
		p = append(p, plan.Required(iptables.Program{Backend: "ipMasqBackend", Table: "nat"}))
	}
	return p
}

// MasqueradeKinds are the kinds of what Plan may have, by whichever backend, and whoever made it.
func MasqueradeKinds() []plan.Kind {
	return []plan.Kind{
		filter.SharedChainKind(), masquerade.Kind(), masquerade.KindIPTables(), reference.MasqueradeKind(),
	}
}

// Plan is by the backend that the configuration names.
func (m Masquerade) Plan(r *Request) plan.Plan {
	k := masquerade.Sources{Owner: r.Owner, From: r.Prefixes(), Except: m.MasqExcept, Force: m.MasqForce,
		SNATTo: m.SnatTo}
	switch {
	case !m.IPMasq:
		return nil
	case m.IPMasqBackend == "iptables":
		return plan.Plan{masquerade.SourcesIPTables{Sources: k}}
	}
	return plan.Plan{k}
}
