package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Veth is a pair of links: one end in the container, one on the host, maybe a port of a bridge there.
type Veth struct {
	Owner    spec.Owner
	Name     string // the container's end
	Host     string // the host's end: kernel.LinkName("veth", Owner)
	MTU      MTU
	MAC      string // of the container's end
	HostMAC  string
	Master   string // the bridge that the host's end is a port of
	Hairpin  bool
	Isolated bool
	Down     bool // leave the container's end down
}

func (v Veth) String() string {
	return line("link cont/"+v.Name, "type veth", opt("mtu", v.MTU), opt("address", v.MAC), flag("down", v.Down),
		"peer host/"+v.Host, opt("address", v.HostMAC), opt("master", v.Master),
		flag("hairpin on", v.Hairpin), flag("isolated on", v.Isolated))
}

// Ifaces implements Linker.
func (v Veth) Ifaces() []Iface { return []Iface{{Host, v.Host}, {Container, v.Name}} }

// Ensure implements plan.Resource.
func (v Veth) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (v Veth) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }

// Remove implements plan.Remover.
func (v Veth) Remove(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
