package trace

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// TestMain runs each test in a host of its own.
func TestMain(m *testing.M) { nstest.Main(m) }
