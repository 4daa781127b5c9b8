package policy

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// FailClosedKind returns the Kind of FailClosed on links that belong to one attachment. A rule does not contain its
// network. Kind removes rules for links that are gone.
func FailClosedKind() plan.Kind {
	return resource.KindByRemover("routing rules of a policy", nil,
		func(o spec.Owner) plan.Remover { return FailClosed{Owner: o} })
}

// IngressKind returns the Kind of Ingress on a link that belongs to one attachment.
func IngressKind() plan.Kind {
	return filter.NewKind("policy on a link of its own", filter.Inet, filter.KindIngress, filter.KindOwnSubnet)
}

// Kind returns the Kind of Ingress and IngressIPTables on links that attachments share. The network's policy on a
// link is removed with the last attachment that has one.
func Kind() plan.Kind {
	return resource.NewKind("policy", resource.KindFuncs{
		Owners: func(_ context.Context, w *kernel.World, network string) ([]plan.Tag, error) {
			nft, err := resource.RecordedTags[string](w, policyRecord, network)
			ipt, ierr := resource.RecordedTags[string](w, iptPolicyRecord, network)
			return append(nft, ipt...), errors.Join(err, ierr)
		},
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			return removeReference(ctx, w, t.Owner)
		},
		Found: func(ctx context.Context, w *kernel.World, tags []plan.Tag) error {
			network, keep := tags[0].Network, resource.NotOf(tags)
			err := errors.Join(sweepPolicies(ctx, w, network, keep), sweepReferences(ctx, w, network, keep))
			if err != nil {
				return err
			}
			return resource.ForgetRecords(w, tags, policyRecord, iptPolicyRecord)
		},
		Tidy: func(ctx context.Context, w *kernel.World, network string, used bool) error {
			return errors.Join(SweepStages(ctx, w), SweepNetwork(ctx, w, network, used))
		}})
}
