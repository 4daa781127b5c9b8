package resource

import (
	"context"
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
)

// A Gateway is the address that a bridge has as the gateway of its containers. Another address in its
// place is a conflict: any other IPv4 address, or an IPv6 address of an overlapping subnet.
type Gateway struct {
	Link   string
	Prefix netip.Prefix
	Force  bool // replace what is in its place
}

func (g Gateway) String() string {
	return line("addr", "host/"+g.Link, g.Prefix.String(), "as gateway", flag("force", g.Force))
}

// Ensure implements plan.Resource.
func (g Gateway) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (g Gateway) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
