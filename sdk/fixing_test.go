package sdk_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/sdk"
)

// TestLines: an error that joins others is a line for each; one that has causes, or none, is a line of its own. A plugin
// that was killed before it said anything has none, and a repair that lost it called the attachment in order.
func TestLines(t *testing.T) {
	a, b := errors.New("a"), fmt.Errorf("b: %w", errors.New("c"))
	killed := &invoke.ExecError{Path: "/x", Type: "x", Command: "FAIRLEAD_REPAIR", Status: -1}
	for _, tt := range []struct {
		err  error
		want []string
	}{
		{nil, nil},
		{errors.Join(a, errors.Join(b, a)), []string{"a", "b: c", "a"}},
		{fmt.Errorf("both: %w, %w", a, b), []string{"both: a, b: c"}},
		{killed, []string{killed.Error()}},
	} {
		if got := sdk.Lines(tt.err); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}
