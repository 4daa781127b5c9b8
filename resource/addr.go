package resource

import (
	"context"
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
)

// An Addr is an address of a link.
type Addr struct {
	Where         Where
	Link          string
	Prefix        netip.Prefix // the address with its subnet's length
	NoDAD         bool         // IPv6: usable at once, without asking whether somebody else has it
	NoPrefixRoute bool         // do not make the route to the subnet
}

func (a Addr) String() string {
	return line("addr", a.Where.String()+a.Link, a.Prefix.String(), flag("nodad", a.NoDAD), flag("noprefixroute", a.NoPrefixRoute))
}

// Ensure implements plan.Resource.
func (a Addr) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (a Addr) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
