package contract

import (
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// Outlives reports whether a record may stay after GC.
var Outlives = func(string) bool { return false }

// Sweep is GC of kinds, with the records that go after them.
func Sweep(ctx context.Context, w *kernel.World, kinds []plan.Kind, network string, valid []spec.Owner) error {
	if err := engine.Collect(ctx, w, kinds, network, valid); err != nil {
		return err
	}
	return w.Store.Sweep(network, func(record string, owner [8]byte) bool {
		return Outlives(record) || slices.ContainsFunc(valid,
			func(o spec.Owner) bool { return identity.OwnerHash(o) == owner })
	})
}

// SweepKinds removes of some kinds what belongs to owners that keep does not want.
func SweepKinds(ctx context.Context, w *kernel.World, kinds []plan.Kind, network string, keep func([8]byte) bool,
	keepUnmarked func(*rtnl.Link) bool) error {
	var errs []error
	for _, k := range kinds {
		tags, err := k.Owners(ctx, w, network)
		tags = slices.DeleteFunc(tags, func(t plan.Tag) bool {
			if t.Could != nil {
				l, ok := t.Found.(*rtnl.Link)
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
