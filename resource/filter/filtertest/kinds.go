package filtertest

import (
	"context"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
	"github.com/fairlead-cni/fairlead/spec"
)

// Main runs the tests of a package, with the kinds of all of filter's rooms.
func Main(m *testing.M) {
	contract.KindOf = kindOf
	contract.KillPlans = map[string]func() plan.Plan{
		"filter": KillFilterPlan, "record": func() plan.Plan { return plan.Plan{SourcesByIPTables()} },
		"policy": func() plan.Plan { return PolicyPlan("c1") },
	}
	contract.Main(m)
}

// kinds are the kinds of all rooms, in an order in which plugins may declare them.
func kinds() []plan.Kind {
	return []plan.Kind{policy.Kind(), policy.FailClosedKind(), forward.Kind(), publish.KindIPTables(),
		masquerade.KindIPTables(),
		filter.SharedChainKind(), masquerade.Kind(), publish.Kind(), policy.IngressKind(), spoof.Kind(),
		policy.IsolatedPortKind()}
}

// kindOf is the Kind of a resource, and whose it is.
func kindOf(r plan.Resource) (plan.Kind, spec.Owner) {
	switch r := plan.Unwrap(r).(type) {
	case publish.Ports:
		return publish.Kind(), r.Owner
	case masquerade.Sources:
		return masquerade.Kind(), r.Owner
	case spoof.Check:
		return spoof.Kind(), r.Owner
	case policy.IsolatedPort:
		return policy.IsolatedPortKind(), r.Owner
	case policy.Ingress:
		return policy.IngressKind(), r.Owner
	case policy.FailClosed: // of the network
		return nil, r.Owner
	case publish.PortsIPTables:
		return publish.KindIPTables(), r.Owner
	case masquerade.SourcesIPTables:
		return masquerade.KindIPTables(), r.Owner
	case forward.Forward:
		return forward.Kind(), r.Owner
	}
	return nil, spec.Owner{}
}

// Sweep is GC of these kinds, with the records that go after them.
func Sweep(ctx context.Context, w *kernel.World, network string, valid []spec.Owner) error {
	return contract.Sweep(ctx, w, kinds(), network, valid)
}

// SweepNFT removes what owners that keep does not want have in our tables.
func SweepNFT(ctx context.Context, w *kernel.World, network string, keep func([8]byte) bool) error {
	nft := []plan.Kind{filter.SharedChainKind(), masquerade.Kind(), publish.Kind(), policy.IngressKind(), spoof.Kind(),
		policy.IsolatedPortKind()}
	return contract.SweepKinds(ctx, w, nft, network, keep, nil)
}
