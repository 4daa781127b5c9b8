package filter

import (
	"context"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestMain(m *testing.M) {
	contract.KindOf = kindOf
	contract.KillPlans = map[string]func() plan.Plan{
		"filter": killFilterPlan, "record": func() plan.Plan { return plan.Plan{iptMasq()} }, "policy": func() plan.Plan { return policyPlan("c1") },
	}
	contract.Main(m)
}

// kinds are the kinds of this package, in an order in which plugins may declare them.
func kinds() []plan.Kind {
	return []plan.Kind{PolicyKind(), FailClosedKind(), ForwardKind(), PublishIPTablesKind(), MasqueradeIPTablesKind(),
		SharedChainKind(), MasqueradeKind(), PublishKind(), IngressKind(), SpoofCheckKind(), IsolatedPortKind()}
}

// kindOf is the Kind of a resource, and whose it is.
func kindOf(r plan.Resource) (plan.Kind, spec.Owner) {
	switch r := plan.Unwrap(r).(type) {
	case Publish:
		return PublishKind(), r.Owner
	case Masquerade:
		return MasqueradeKind(), r.Owner
	case SpoofCheck:
		return SpoofCheckKind(), r.Owner
	case IsolatedPort:
		return IsolatedPortKind(), r.Owner
	case PublishIPTables:
		return PublishIPTablesKind(), r.Owner
	case MasqueradeIPTables:
		return MasqueradeIPTablesKind(), r.Owner
	case Forward:
		return ForwardKind(), r.Owner
	}
	return nil, spec.Owner{}
}

// sweep is GC of this package's kinds, with the records that go after them.
func sweep(ctx context.Context, w *kernel.World, network string, valid []spec.Owner) error {
	return contract.Sweep(ctx, w, kinds(), network, valid)
}

// sweepNFT removes what owners that keep does not want have in our tables.
func sweepNFT(ctx context.Context, w *kernel.World, network string, keep func([8]byte) bool) error {
	nft := []plan.Kind{SharedChainKind(), MasqueradeKind(), PublishKind(), IngressKind(), SpoofCheckKind(),
		IsolatedPortKind()}
	return contract.SweepKinds(ctx, w, nft, network, keep, nil)
}
