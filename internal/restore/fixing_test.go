package restore

import (
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// What says the same as one before is left out, and the order stays.
func TestUnique(t *testing.T) {
	b, a := spec.Missing("b"), spec.Missing("a")
	same := b
	same.Repair = spec.ByHand
	if got := Unique(spec.Differences{b, a, same, a}).Lines(); !slices.Equal(got, []string{"b is missing", "a is missing"}) {
		t.Errorf("they are %q", got)
	}
}
