package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
)

// A Sysctl is a setting under /proc/sys. It is written only where it differs, for nodes have a read-only
// /proc.
type Sysctl struct {
	Where Where
	Key   string // net.ipv4.ip_forward or net/ipv4/ip_forward; the first separator decides, as sysctl(8) has it
	Value string
}

func (s Sysctl) String() string { return "sysctl " + s.Where.String() + s.Key + "=" + s.Value }

// Ensure implements plan.Resource.
func (s Sysctl) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (s Sysctl) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }

// An EnableIPv6 lets a link of the container have IPv6 addresses, which keep when it goes down.
type EnableIPv6 struct {
	Link  string
	NoDAD bool // addresses are usable at once, without asking whether somebody else has them
}

func (e EnableIPv6) String() string { return line("ipv6 on cont/"+e.Link, flag("nodad", e.NoDAD)) }

// Ensure implements plan.Resource.
func (e EnableIPv6) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (e EnableIPv6) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }

// An IPv6Off is a link of the container without IPv6, not even a link-local address.
type IPv6Off struct{ Link string }

func (i IPv6Off) String() string { return "ipv6 off cont/" + i.Link }

// Ensure implements plan.Resource.
func (i IPv6Off) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (i IPv6Off) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
