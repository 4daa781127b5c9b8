package filter

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
)

// ForwardKind is the Kind of Forward. Owners have a record, or a comment on an accept in iptables.
func ForwardKind() plan.Kind {
	return resource.NewKind("accept of forwarded packets", resource.KindFuncs{
		Owners: func(ctx context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
			tags, err := resource.RecordedTags[forwarded](w, forwardRecord, network)
			accepted, aerr := accepted(ctx, w, network)
			return append(tags, accepted...), errors.Join(err, aerr)
		},
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			return Forward{Owner: t.Owner}.Remove(ctx, w)
		},
		Found: func(ctx context.Context, w *kernel.World, tags []plan.Tag) error {
			if err := SweepForward(ctx, w, tags[0].Network, resource.NotOf(tags)); err != nil {
				return err
			}
			return resource.ForgetRecords(w, tags, forwardRecord)
		}})
}

// PolicyKind is the Kind of Ingress and IPTIngress on links that attachments share. The network's policy on a link goes
// with the last attachment that has one.
func PolicyKind() plan.Kind {
	return resource.NewKind("policy", resource.KindFuncs{
		Owners: func(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
			nft, err := resource.RecordedTags[string](w, policyRecord, network)
			ipt, ierr := resource.RecordedTags[string](w, iptPolicyRecord, network)
			return append(nft, ipt...), errors.Join(err, ierr)
		},
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			return PolicyReference{Owner: t.Owner}.Remove(ctx, w)
		},
		Found: func(ctx context.Context, w *kernel.World, tags []plan.Tag) error {
			network, keep := tags[0].Network, resource.NotOf(tags)
			err := errors.Join(sweepPolicies(ctx, w, network, keep), sweepPolicyReferences(ctx, w, network, keep))
			if err != nil {
				return err
			}
			return resource.ForgetRecords(w, tags, policyRecord, iptPolicyRecord)
		},
		Tidy: func(ctx context.Context, w *kernel.World, network string, used bool) error {
			return errors.Join(SweepStages(ctx, w), SweepNetwork(ctx, w, network, used))
		}})
}
