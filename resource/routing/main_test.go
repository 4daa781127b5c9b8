package routing

import (
	"context"
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/link/linktest"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestMain(m *testing.M) {
	contract.KindOf = kindOf
	contract.Main(m)
}

// kinds are the kinds of this package, in an order in which plugins may declare them.
func kinds() []plan.Kind {
	return []plan.Kind{VRFKind(""), SourceRoutingKind(0), ChangeKind()}
}

// kindOf is the Kind of a resource, and whose it is.
func kindOf(r plan.Resource) (plan.Kind, spec.Owner) {
	switch r := plan.Unwrap(r).(type) {
	case VRF:
		return VRFKind(""), r.Owner
	case SourceRouting:
		return SourceRoutingKind(0), r.Owner
	case Change:
		return ChangeKind(), r.Owner
	}
	return nil, spec.Owner{}
}

// sweep is GC of this package's kinds, with the records that go after them.
func sweep(ctx context.Context, w *kernel.World, network string, valid []spec.Owner) error {
	return contract.Sweep(ctx, w, kinds(), network, valid)
}

// attached is a bridge, and a container on it that has 10.1.0.2/16 and fd00::2/64.
func attached() plan.Plan {
	v := linktest.Veth(contract.Owner, "cni0")
	v.Down = true
	return plan.Plan{
		link.Bridge{Name: "cni0"}, v, sysctl.EnableIPv6{Link: "eth0", NoDAD: true},
		addr.Addr{Link: "eth0", Prefix: netip.MustParsePrefix("10.1.0.2/16")},
		addr.Addr{Link: "eth0", Prefix: netip.MustParsePrefix("fd00::2/64"), NoDAD: true},
		link.Up{Link: "eth0"},
		addr.Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("10.1.0.1/16")},
		addr.Gateway{Link: "cni0", Prefix: netip.MustParsePrefix("fd00::1/64")},
	}
}
