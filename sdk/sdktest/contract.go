package sdktest

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Contract is what a resource, and its kind, are held to on a real kernel:
//
//   - Verify fails before Ensure, and not after it; a second Ensure changes nothing.
//   - Each Damage is named by Verify, which changes nothing, and is made good by Remove and Ensure.
//   - Remove leaves what was there before, and removing nothing succeeds.
//   - Owners of the kind finds what Ensure made; Remove of the kind removes all of it, and nothing of other
//     attachments; garbage collection removes it only if its attachment is not valid.
type Contract struct {
	World *kernel.World // from NewWorld; what the resource needs to be there is made before
	Kind  plan.Kind     // nil: the resource goes with the container's namespace
	Owner spec.Owner    // whose the resource is

	// Once is set where a second Ensure is an error that changes nothing, as for the link that a container gets.
	Once bool

	// State is all that the resource could change, as text; nil: links, addresses and routes of host and container.
	State func(testing.TB) string
}

// A Damage changes one thing of a resource, and has the words that Verify must report it with.
type Damage struct {
	Name string // of the subtest
	Do   func(*testing.T)
	Want string // is part of Verify's error
}

// Test checks that r fulfils the contract.
func (c Contract) Test(t *testing.T, r plan.Resource, damages ...Damage) {
	t.Helper()
	var all []contract.Breakage
	for _, d := range damages {
		all = append(all, contract.Break(d.Name, d.Do, d.Want))
	}
	contract.Terms{Once: c.Once, State: c.State, Kind: c.Kind, Owner: c.Owner}.Test(t, c.World, r, all...)
}
