package cli

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// program is the program, built for the test.
func program(t *testing.T) string {
	t.Helper()
	return nstest.Fairlead(t, "../../..")
}
