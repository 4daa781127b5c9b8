package bridge

import (
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// validMasquerade refuses what would go without effect, so that nobody believes in it.
func (c conf) validMasquerade() error {
	switch {
	case !c.IPMasq && len(c.MasqForce) > 0:
		return spec.Errorf(spec.CodeConfig, "masqForce: %v: nothing is masqueraded without ipMasq; set it, or remove the key", c.MasqForce)
	case !c.IPMasq && len(c.SnatTo) > 0:
		return spec.Errorf(spec.CodeConfig, "snatTo: %v: nothing is masqueraded without ipMasq; set it, or remove the key", c.SnatTo)
	}
	return resource.ValidSNATTo(c.SnatTo)
}
