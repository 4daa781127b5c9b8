package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
)

// A Forwarding is a host that forwards packets of one family. It is never taken back.
type Forwarding struct{ V6 bool }

func (f Forwarding) String() string {
	if f.V6 {
		return "forwarding ipv6"
	}
	return "forwarding ipv4"
}

// Ensure implements plan.Resource.
func (f Forwarding) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (f Forwarding) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
