package sdk_test

import (
	"testing"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
)

// `fairlead doctor` chooses its findings by these names, whichever package the types are in.
func TestKindName(t *testing.T) {
	for want, r := range map[string]plan.Resource{
		"Bridge": link.Bridge{}, "Veth": link.Veth{}, "Addr": addr.Addr{}, "Gateway": addr.Gateway{},
		"Route":   addr.Route{},
		"Forward": forward.Forward{}, "Forwarding": sysctl.Forwarding{},
	} {
		if got := resource.TypeName(r); got != want {
			t.Errorf("resource.TypeName(%T) is %q, want %q", r, got, want)
		}
	}
}
