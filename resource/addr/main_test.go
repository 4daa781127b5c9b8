package addr

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/lawtest"
	"github.com/fairlead-cni/fairlead/plan"
)

func TestMain(m *testing.M) {
	lawtest.KillPlans = map[string]func() plan.Plan{"links": killPlan}
	lawtest.Main(m)
}
