package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
)

// ForwardKind is the Kind of Forward. Owners have a record, or a comment on an accept in iptables.
func ForwardKind() plan.Kind {
	return newKind("accept of forwarded packets", kindFuncs{
		owners: func(ctx context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
			tags, err := recorded[forwarded](w, forwardRecord, network)
			accepted, aerr := accepted(ctx, w, network)
			return append(tags, accepted...), errors.Join(err, aerr)
		},
		remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			return Forward{Owner: t.Owner}.Remove(ctx, w)
		},
		found: func(ctx context.Context, w *kernel.World, tags []plan.Tag) error {
			if err := SweepForward(ctx, w, tags[0].Network, notOf(tags)); err != nil {
				return err
			}
			return forgetAll(w, tags, forwardRecord)
		}})
}

// PolicyKind is the Kind of Ingress and IPTIngress on links that attachments share. The network's policy on a link goes with the last
// attachment that has one.
func PolicyKind() plan.Kind {
	return newKind("policy", kindFuncs{
		owners: func(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
			nft, err := recorded[string](w, policedRecord, network)
			ipt, ierr := recorded[string](w, iptPolicedRecord, network)
			return append(nft, ipt...), errors.Join(err, ierr)
		},
		remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			return Policed{Owner: t.Owner}.Remove(ctx, w)
		},
		found: func(ctx context.Context, w *kernel.World, tags []plan.Tag) error {
			network, keep := tags[0].Network, notOf(tags)
			err := errors.Join(sweepPolicies(ctx, w, network, keep), sweepPoliced(ctx, w, network, keep))
			if err != nil {
				return err
			}
			return forgetAll(w, tags, policedRecord, iptPolicedRecord)
		},
		tidy: func(ctx context.Context, w *kernel.World, network string, used bool) error {
			return errors.Join(SweepStages(ctx, w), SweepNetwork(ctx, w, network, used))
		}})
}
