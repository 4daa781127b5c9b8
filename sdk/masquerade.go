package sdk

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/reference"
	"github.com/fairlead-cni/fairlead/spec"
)

// Masquerade are the keys of a plugin that can give what leaves its network the host's address.
type Masquerade struct {
	IPMasq        bool           `json:"ipMasq"`                                                                                                     // masquerade what leaves the network
	IPMasqBackend string         `json:"ipMasqBackend" want:"nftables|iptables" says:"\"nftables\", which is the default, or \"iptables\"" code:"2"` // nftables, which is the default, or iptables: in a chain of the reference's name, by the program that has table nat on this host
	MasqExcept    []netip.Prefix `json:"masqExcept"`                                                                                                 // destinations that see the container's own address
	MasqForce     []netip.Prefix `json:"masqForce"`                                                                                                  // destinations that never see it, not even inside the network or where masqExcept has them
	SnatTo        []netip.Addr   `json:"snatTo"`                                                                                                     // source addresses to masquerade with, of this host, one of a family; default: that of the link that is left by
}

// Validate refuses what would go without effect, so that nobody believes in it.
func (m Masquerade) Validate() error {
	switch {
	case !m.IPMasq && len(m.MasqForce) > 0:
		return spec.Errorf(spec.CodeConfig, "masqForce: %v: nothing is masqueraded without ipMasq; set it, or remove the key",
			m.MasqForce)
	case !m.IPMasq && len(m.SnatTo) > 0:
		return spec.Errorf(spec.CodeConfig, "snatTo: %v: nothing is masqueraded without ipMasq; set it, or remove the key",
			m.SnatTo)
	}
	return filter.ValidSNATTo(m.SnatTo)
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
		p = append(p, plan.Required(filter.HostAddrs(m.SnatTo)))
	}
	if m.IPMasq && m.IPMasqBackend == "iptables" {
		p = append(p, plan.Required(filter.IPTables{Backend: "ipMasqBackend", Table: "nat"}))
	}
	return p
}

// MasqueradeKinds are the kinds of what Plan may have, by whichever backend, and whoever made it.
func MasqueradeKinds() []plan.Kind {
	return []plan.Kind{
		filter.SharedChainKind(), filter.MasqueradeKind(), filter.MasqueradeIPTablesKind(), reference.MasqueradeKind(),
	}
}

// Plan is by the backend that the configuration names.
func (m Masquerade) Plan(r *Request) plan.Plan {
	k := filter.Masquerade{Owner: r.Owner, From: r.Prefixes(), Except: m.MasqExcept, Force: m.MasqForce, SNATTo: m.SnatTo}
	switch {
	case !m.IPMasq:
		return nil
	case m.IPMasqBackend == "iptables":
		return plan.Plan{filter.MasqueradeIPTables{Masquerade: k}}
	}
	return plan.Plan{k}
}
