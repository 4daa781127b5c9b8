package contract

import (
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// KindOf is the Kind of a resource, and whose the resource is; nil where the law below does not hold for it by itself:
// what ends with the container, so that GC has nothing to remove, or belongs to a bridge. A package's tests say it of
// their resources.
var KindOf = func(plan.Resource) (plan.Kind, spec.Owner) { return nil, spec.Owner{} }

// testKind holds k, the Kind of r, which is of's, to its law: Owners finds what Ensure made, Remove leaves nothing of
// it, and that of no other attachment goes. State is as before Ensure.
func testKind(t *testing.T, w *kernel.World, r plan.Resource, k plan.Kind, of spec.Owner,
	state func(testing.TB) string) {
	t.Helper()
	ctx := t.Context()
	before := state(t)
	ensure := func() string {
		t.Helper()
		if _, err := r.Ensure(ctx, w); err != nil {
			t.Fatalf("%s: ensure: %v", k.Name(), err)
		}
		return state(t)
	}
	same := func(when, want string) {
		t.Helper()
		if got := state(t); got != want {
			t.Fatalf("%s: %s: %s", k.Name(), when, Difference(want, got))
		}
	}
	remove := func(w *kernel.World, tags ...plan.Tag) {
		t.Helper()
		if err := k.Remove(ctx, w, tags...); err != nil {
			t.Fatalf("%s: remove: %v", k.Name(), err)
		}
	}
	other := spec.Owner{Network: of.Network, ContainerID: of.ContainerID + "-other", IfName: "other0"}

	remove(w, plan.TagOf(of)) // nothing
	same("removing nothing changed something", before)
	made := ensure()
	remove(w, plan.TagOf(other))
	same("remove took another attachment's", made)
	remove(w, plan.TagOf(of))
	same("remove left something", before)

	made = ensure()
	gc := &kernel.World{Host: w.Host, Store: w.Store}
	tags := ownersWith(t, gc, k, of)
	same("owners changed something", made)
	others := []spec.Owner{other} // those that the test has attached beside
	for _, t := range tags {
		if t.Known() && t.Owner != of {
			others = append(others, t.Owner)
		}
	}
	for network, valid := range map[string][]spec.Owner{of.Network: append(others, of), "another": nil} {
		if err := engine.Collect(ctx, gc, []plan.Kind{k}, network, valid); err != nil {
			t.Fatalf("%s: GC of %s with %v: %v", k.Name(), network, valid, err)
		}
		same("GC took what is valid", made)
	}
	if k.Name() == "interface in the container" { // where it was made the engine writes down
		writeMade(t, w, of)
	}
	if err := engine.Collect(ctx, gc, []plan.Kind{k}, of.Network, others); err != nil {
		t.Fatalf("%s: GC: %v", k.Name(), err)
	}
	same("GC left something", before)
	if err := r.Verify(ctx, w); err == nil {
		t.Errorf("%s: after GC %v is as it should be", k.Name(), r)
	}
}

// ownersWith are the tags that a kind finds in a network; the owner has to be among them.
func ownersWith(t *testing.T, gc *kernel.World, k plan.Kind, of spec.Owner) []plan.Tag {
	t.Helper()
	tags, err := k.Owners(t.Context(), gc, of.Network)
	if err != nil {
		t.Fatalf("%s: owners: %v", k.Name(), err)
	}
	if !slices.ContainsFunc(tags, func(t plan.Tag) bool {
		return t.Hash == identity.OwnerHash(of) || t.Could != nil && t.Could(of)
	}) {
		t.Fatalf("%s: owners do not name %v: %v", k.Name(), of, tags)
	}
	return tags
}

// writeMade writes down where the owner's interface is, as the engine does.
func writeMade(t *testing.T, w *kernel.World, of spec.Owner) {
	t.Helper()
	id, err := w.Container.Identity()
	if err == nil {
		err = w.Store.Put(resource.MadeRecord, of, resource.Made{Identity: id, Path: w.Container.Path, Owner: of})
	}
	if err != nil {
		t.Fatal(err)
	}
}
