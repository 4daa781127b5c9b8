package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A SpoofCheck drops what comes in by Link, the host end of a container on a bridge, under another source
// address than MAC.
type SpoofCheck struct {
	Owner spec.Owner
	Link  string // the host end
	MAC   string
}

func (s SpoofCheck) String() string {
	return line("spoofcheck", opt("iifname", s.Link), opt("ether saddr !=", s.MAC), "drop")
}

// Ensure implements plan.Resource.
func (s SpoofCheck) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (s SpoofCheck) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }

// Remove implements plan.Remover. It needs only the owner.
func (s SpoofCheck) Remove(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
