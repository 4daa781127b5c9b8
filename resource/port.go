package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Port makes somebody else's link on the host a port of a bridge. Removing it detaches the link.
type Port struct {
	Owner    spec.Owner
	Link     string
	Master   string
	Hairpin  bool
	Isolated bool
}

func (p Port) String() string {
	return line("link host/"+p.Link, opt("master", p.Master), flag("hairpin on", p.Hairpin), flag("isolated on", p.Isolated))
}

// Ifaces implements Linker.
func (p Port) Ifaces() []Iface { return []Iface{{Host, p.Link}} }

// Ensure implements plan.Resource.
func (p Port) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (p Port) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }

// Remove implements plan.Remover.
func (p Port) Remove(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
