package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
)

// An Up is a link that is up.
type Up struct {
	Where Where
	Link  string
}

func (u Up) String() string { return "link " + u.Where.String() + u.Link + " up" }

// Ensure implements plan.Resource.
func (u Up) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (u Up) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
