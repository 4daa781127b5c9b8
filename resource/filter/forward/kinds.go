package forward

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
)

// Kind returns the Kind of Forward. It finds owners by a record, or by the comment on an accept in iptables.
func Kind() plan.Kind {
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
			if err := Sweep(ctx, w, tags[0].Network, resource.NotOf(tags)); err != nil {
				return err
			}
			return resource.ForgetRecords(w, tags, forwardRecord)
		}})
}
