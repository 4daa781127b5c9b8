package addr

import (
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/plan"
)

func TestMain(m *testing.M) {
	contract.KillPlans = map[string]func() plan.Plan{"links": killPlan}
	contract.Main(m)
}
