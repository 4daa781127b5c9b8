package tune

import (
	"context"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestMain(m *testing.M) {
	contract.KindOf = func(plan.Resource) (plan.Kind, spec.Owner) { return nil, contract.Owner } // the container has all of it
	contract.Main(m)
}

// kinds are the kinds of this package, in an order in which plugins may declare them.
func kinds() []plan.Kind {
	return []plan.Kind{TuningKind("")}
}

// sweep is GC of this package's kinds, with the records that go after them.
func sweep(ctx context.Context, w *kernel.World, network string, valid []spec.Owner) error {
	return contract.Sweep(ctx, w, kinds(), network, valid)
}
