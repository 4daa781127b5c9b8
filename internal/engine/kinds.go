package engine

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// Remove is DEL: it removes what an attachment has of each kind, the last kind first. It continues after an error.
// Objects in a vanished namespace count as removed.
func Remove(ctx context.Context, w *kernel.World, kinds []plan.Kind, t plan.Tag) error {
	var errs failures
	for _, k := range slices.Backward(kinds) {
		errs.step(ctx, removing(k.Name), func() error { return k.Remove(ctx, w, t) })
	}
	return errs.end(w)
}

// Collect is GC (clause P22): for each kind, it removes what attachments of the network have that are not valid, the
// last kind first. It continues after an error.
func Collect(ctx context.Context, w *kernel.World, kinds []plan.Kind, network string, valid []spec.Owner) error {
	living := map[[8]byte]bool{}
	for _, o := range valid {
		living[identity.OwnerHash(o)] = true
	}
	lives := func(t plan.Tag) bool {
		return t.Could == nil && living[t.Hash] || t.Could != nil && slices.ContainsFunc(valid, t.Could)
	}

	var errs failures
	for _, k := range slices.Backward(kinds) {
		errs.step(ctx, removing(k.Name), func() error {
			tags, err := k.Owners(ctx, w, network)
			errs.add(removing(k.Name), err)
			if tags = slices.DeleteFunc(tags, lives); len(tags) == 0 {
				return nil
			}
			return k.Remove(ctx, w, tags...)
		})
	}
	for _, k := range slices.Backward(kinds) {
		if t, ok := k.(plan.Tidier); ok {
			errs.add(removing(k.Name), t.Tidy(ctx, w, network, len(valid) > 0))
		}
	}
	return errs.end(w)
}

// Union returns the kinds of several plugins, each kind once. It panics if two kinds of different types have one name,
// because GC would leave the objects of one of them.
func Union(of ...[]plan.Kind) (all []plan.Kind) {
	known := map[string]reflect.Type{}
	for _, k := range slices.Concat(of...) {
		is := reflect.TypeOf(k)
		switch as, found := known[k.Name()]; {
		case !found:
			known[k.Name()] = is
			all = append(all, k)
		case as != is:
			panic(fmt.Sprintf("two kinds are called %q: %v and %v", k.Name(), as, is))
		}
	}
	return all
}
