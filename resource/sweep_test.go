package resource

import (
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

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
	if err := plan.Collect(ctx, w, allKinds(), network, valid); err != nil {
		return err
	}
	return w.Memory.Sweep(network, func(record string, owner [8]byte) bool {
		return Outlives(record) || slices.ContainsFunc(valid, func(o spec.Owner) bool { return kernel.OwnerHash(o) == owner })
	})
}

// sweepKinds removes of some kinds what belongs to owners that keep does not want.
func sweepKinds(ctx context.Context, w *kernel.World, kinds []plan.Kind, network string, keep func([8]byte) bool, keepUnmarked func(*kernel.Link) bool) error {
	var errs []error
	for _, k := range kinds {
		tags, err := k.Owners(ctx, w, network)
		tags = slices.DeleteFunc(tags, func(t plan.Tag) bool {
			if t.Could != nil {
				l, ok := t.Found.(*kernel.Link)
				return ok && keepUnmarked(l)
			}
			return keep(t.Hash)
		})
		if errs = append(errs, err); len(tags) > 0 {
			errs = append(errs, k.Remove(ctx, w, tags...))
		}
	}
	for _, k := range kinds {
		if t, ok := k.(plan.Tidier); ok {
			errs = append(errs, t.Tidy(ctx, w, network, true))
		}
	}
	return errors.Join(errs...)
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
