package bridge

import (
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// validMasquerade refuses what would go without effect, so that nobody believes in it.
func (c conf) validMasquerade() error {
	switch {
	case c.IPMasqBackend != "" && c.IPMasqBackend != "nftables" && c.IPMasqBackend != "iptables":
		return spec.Errorf(spec.CodeUnsupported, "ipMasqBackend: %q: want \"nftables\", which is the default, or \"iptables\"", c.IPMasqBackend)
	case !c.IPMasq && len(c.MasqForce) > 0:
		return spec.Errorf(spec.CodeConfig, "masqForce: %v: nothing is masqueraded without ipMasq; set it, or remove the key", c.MasqForce)
	case !c.IPMasq && len(c.SnatTo) > 0:
		return spec.Errorf(spec.CodeConfig, "snatTo: %v: nothing is masqueraded without ipMasq; set it, or remove the key", c.SnatTo)
	}
	return resource.ValidSNATTo(c.SnatTo)
}

// masquerade is by the backend that the configuration names; in DEL by whichever it was, and whoever made it.
func (c conf) masquerade(r *sdk.Request) plan.Plan {
	m := resource.Masquerade{Owner: r.Owner, From: r.Prefixes(), Except: c.MasqExcept, Force: c.MasqForce, SNATTo: c.SnatTo}
	switch {
	case r.Verb == "DEL":
		return plan.Plan{m, resource.MasqueradeIPTables{Masquerade: m}, resource.FormerMasquerade{Owner: r.Owner}}
	case !c.IPMasq:
		return nil
	case c.IPMasqBackend == "iptables":
		return plan.Plan{resource.MasqueradeIPTables{Masquerade: m}}
	}
	return plan.Plan{m}
}
