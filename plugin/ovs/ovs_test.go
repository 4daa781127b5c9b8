package ovs

import (
	"flag"
	"testing"

	"github.com/fairlead-cni/fairlead/sdk/sdktest"
)

var _ = flag.Bool("update", false, "write the plans that come out into testdata")

func TestPlan(t *testing.T) { sdktest.Goldens(t, Plugin) }
