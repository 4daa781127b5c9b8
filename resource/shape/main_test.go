package shape

import (
	"context"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

func TestMain(m *testing.M) {
	contract.KindOf = kindOf
	contract.Main(m)
}

// kinds are the kinds of this package, in an order in which plugins may declare them.
func kinds() []plan.Kind {
	return []plan.Kind{IFBKind(), LimitKind()}
}

// kindOf is the Kind of a resource, and whose it is. What is in a container ends with it.
func kindOf(r plan.Resource) (plan.Kind, spec.Owner) {
	var k plan.Kind
	where, of := resource.Container, spec.Owner{}
	switch r := plan.Unwrap(r).(type) {
	case Qdisc:
		k, where, of = LimitKind(), r.Where, r.Owner
	case Redirect:
		k, where, of = LimitKind(), r.Where, r.Owner
	case IFB:
		k, where, of = IFBKind(), r.Where, r.Owner
	}
	if where == resource.Container {
		return nil, of
	}
	return k, of
}

// sweep is GC of this package's kinds, with the records that go after them.
func sweep(ctx context.Context, w *kernel.World, network string, valid []spec.Owner) error {
	return contract.Sweep(ctx, w, kinds(), network, valid)
}
