package resource

import (
	"context"
	"testing"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// roomKindOf is the Kind of a resource that does not go with its namespace, and whose the resource is; nil where the law below does not
// hold for it by itself: a container's own lo, or what belongs to a bridge.
func roomKindOf(r plan.Resource) (plan.Kind, spec.Owner) {
	switch r := plan.Unwrap(r).(type) {
	case Veth:
		return VethKind(r.Master), r.Owner
	case Port:
		return PortKind(), r.Owner
	case Macvlan:
		return ContainerLink(r.kind()), r.Owner
	case IPvlan:
		return ContainerLink("ipvlan"), r.Owner
	case VLAN:
		return ContainerLink("vlan"), r.Owner
	case Dummy:
		return ContainerLink("dummy"), r.Owner
	case Tap:
		return ContainerLink("tun"), r.Owner
	case HostDevice:
		return DeviceKind(nil), r.Owner
	case VRF:
		return VRFKind(""), r.Owner
	case SourceRouting:
		return SourceRoutingKind(0), r.Owner
	case Change:
		return ChangeKind(), r.Owner
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

// nftKinds are the kinds of what attachments have in our tables.
func nftKinds() []plan.Kind {
	return []plan.Kind{SharedChainKind(), MasqueradeKind(), PublishKind(), IngressKind(), SpoofCheckKind(), IsolatedPortKind()}
}

// allKinds are all kinds, in an order in which plugins may declare them.
func allKinds() []plan.Kind {
	return append([]plan.Kind{
		LoopbackKind(), TransientBridgeKind(), VethKind(""), PortKind(), ContainerLink("macvlan"), ContainerLink("macvtap"), ContainerLink("ipvlan"),
		ContainerLink("vlan"), ContainerLink("dummy"), ContainerLink("tun"), DeviceKind(nil), IFBKind(), LimitKind(), VRFKind(""), SourceRoutingKind(0), TuningKind(""),
		PolicyKind(), FailClosedKind(), ForwardKind(), PublishIPTablesKind(), MasqueradeIPTablesKind(),
		ReferenceChainKind(), ReferenceMasqueradeKind(), ReferencePortKind(), ReferenceSpoofCheckKind(), ReferenceForwardKind(),
	}, nftKinds()...)
}

// Sweep is GC of all kinds, with the records that go after them.
func Sweep(ctx context.Context, w *kernel.World, network string, valid []spec.Owner) error {
	return sweepAll(ctx, w, allKinds(), network, valid)
}

func SweepNFT(ctx context.Context, w *kernel.World, network string, keep func([8]byte) bool) error {
	return sweepKinds(ctx, w, nftKinds(), network, keep, nil)
}

func SweepLinks(ctx context.Context, w *kernel.World, network string, keep func([8]byte) bool, keepUntagged func(*kernel.Link) bool) error {
	return sweepKinds(ctx, w, []plan.Kind{PortKind(), VethKind(""), IFBKind()}, network, keep, keepUntagged)
}

// containedKinds are the kinds of links that are made in a container.
func containedKinds() (all []plan.Kind) {
	for _, k := range contained() {
		all = append(all, ContainerLink(k))
	}
	return all
}

func TestMain(m *testing.M) {
	kindOf, outlives = roomKindOf, Outlives
	killPlans = map[string]func() plan.Plan{
		"links": killPlan, "filter": killFilterPlan,
		"record": func() plan.Plan { return plan.Plan{iptMasq()} }, "policy": func() plan.Plan { return policyPlan("c1") },
	}
	Main(m)
}
