package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
)

// A Bridge is a bridge on the host. One that exists is used as it is.
type Bridge struct {
	Name    string
	MTU     MTU
	Promisc bool
}

func (b Bridge) String() string {
	return line("link host/"+b.Name, "type bridge", opt("mtu", b.MTU), flag("promisc on", b.Promisc))
}

// Ifaces implements Linker.
func (b Bridge) Ifaces() []Iface { return []Iface{{Host, b.Name}} }

// Ensure implements plan.Resource.
func (b Bridge) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (b Bridge) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
