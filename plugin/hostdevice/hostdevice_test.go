package hostdevice

import (
	"flag"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/plantest"
)

var _ = flag.Bool("update", false, "write the plans that come out into testdata")

func TestPlan(t *testing.T) { plantest.Run(t, Plugin) }
