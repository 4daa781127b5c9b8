package link

import (
	"context"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestMain(m *testing.M) {
	contract.KindOf = kindOf
	contract.Main(m)
}

// kinds are the kinds of this package, in an order in which plugins may declare them.
func kinds() []plan.Kind {
	return []plan.Kind{LoopbackKind(), VethKind(""), PortKind(), ContainerLink("macvlan"), ContainerLink("macvtap"),
		ContainerLink("ipvlan"), ContainerLink("vlan"), ContainerLink("dummy"), ContainerLink("tun")}
}

// kindOf is the Kind of a resource, and whose it is.
func kindOf(r plan.Resource) (plan.Kind, spec.Owner) {
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
	}
	return nil, spec.Owner{}
}

// sweep is GC of this package's kinds, with the records that go after them.
func sweep(ctx context.Context, w *kernel.World, network string, valid []spec.Owner) error {
	return contract.Sweep(ctx, w, kinds(), network, valid)
}

// sweepLinks removes the links on the host that belong to owners that keep does not want.
func sweepLinks(ctx context.Context, w *kernel.World, network string, keep func([8]byte) bool,
	keepUntagged func(*rtnl.Link) bool) error {
	return contract.SweepKinds(ctx, w, []plan.Kind{PortKind(), VethKind("")}, network, keep, keepUntagged)
}

// containedKinds are the kinds of links that are made in a container.
func containedKinds() (all []plan.Kind) {
	for _, k := range contained() {
		all = append(all, ContainerLink(k))
	}
	return all
}

func testVeth(o spec.Owner, master string) Veth {
	return Veth{Owner: o, Name: o.IfName, Host: identity.LinkName("veth", o), Master: master}
}

// stacked is a link of the owner's on a master of the host.
func stacked(o spec.Owner, kind, master string) Stacked {
	return Stacked{Inside: Inside{Owner: o, Name: o.IfName}, Chosen: master == "",
		Master: Master{Where: resource.Host, Link: master, Kind: kind, Taken: true, Up: true}}
}
