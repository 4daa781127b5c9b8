package record

import (
	"os"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

func TestMain(m *testing.M) {
	if os.Getenv(inPIDNamespace) != "" {
		os.Exit(m.Run()) // in the host of the test that made the namespace
	}
	nstest.Main(m)
}

// inPIDNamespace is set where a test runs itself in another PID namespace.
const inPIDNamespace = "FAIRLEAD_TEST_PID_NAMESPACE"
