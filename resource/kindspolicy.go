package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
)

// ForwardKind is the Kind of Forward.
type ForwardKind struct{}

// Name implements plan.Kind.
func (ForwardKind) Name() string { return "accept of forwarded packets" }

// Owners implements plan.Kind: records, and the comments of the accepts in iptables.
func (ForwardKind) Owners(ctx context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	tags, err := recorded[forwarded](w, forwardRecord, network)
	accepted, aerr := accepted(ctx, w, network)
	return append(tags, accepted...), errors.Join(err, aerr)
}

// Remove implements plan.Kind.
func (ForwardKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	if len(tags) == 1 && tags[0].Known() {
		return Forward{Owner: tags[0].Owner}.Remove(ctx, w)
	}
	err := SweepForward(ctx, w, tags[0].Network, notOf(tags))
	if err != nil {
		return err
	}
	return forEach(w, forwardRecord, tags, func(plan.Tag) error { return nil })
}

// PolicyKind is the Kind of Ingress and IPTIngress on links that attachments share.
type PolicyKind struct{}

// Name implements plan.Kind.
func (PolicyKind) Name() string { return "policy" }

// Owners implements plan.Kind.
func (PolicyKind) Owners(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
	nft, err := recorded[string](w, policedRecord, network)
	ipt, ierr := recorded[string](w, iptPolicedRecord, network)
	return append(nft, ipt...), errors.Join(err, ierr)
}

// Remove implements plan.Kind. The network's policy on a link goes with the last attachment that has one.
func (PolicyKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	if len(tags) == 1 && tags[0].Known() {
		return Policed{Owner: tags[0].Owner}.Remove(ctx, w)
	}
	keep := notOf(tags)
	if err := errors.Join(sweepPolicies(ctx, w, tags[0].Network, keep), sweepPoliced(ctx, w, tags[0].Network, keep)); err != nil {
		return err
	}
	return errors.Join(forEach(w, policedRecord, tags, func(plan.Tag) error { return nil }),
		forEach(w, iptPolicedRecord, tags, func(plan.Tag) error { return nil }))
}

// Tidy implements plan.Tidier.
func (PolicyKind) Tidy(ctx context.Context, w *kernel.World, network string, used bool) error {
	return errors.Join(SweepStages(ctx, w), SweepNetwork(ctx, w, network, used))
}
