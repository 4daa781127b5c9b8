package overlay

import (
	"context"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
)

// WireGuardOverhead is what WireGuard adds to a packet in bytes: an IPv6 and a UDP header, and 32 bytes of its own.
// Over IPv4 it is 20 less. The kernel pads what it encrypts to a multiple of 16 bytes, but not beyond the MTU of the
// route, so that this is enough for padded packets, too.
const WireGuardOverhead = 40 + 8 + 32

// A WireGuardLink is the link of a node's WireGuard device. The device's keys and peers are not part of it.
type WireGuardLink struct {
	Name string
	MTU  int // bytes; zero is no opinion
}

func (l WireGuardLink) String() string {
	return resource.Line("wireguard host/"+l.Name, resource.Opt("mtu", l.MTU))
}

// Traits implements resource.Describer.
func (l WireGuardLink) Traits() resource.Traits {
	return resource.Traits{On: resource.Iface{Where: resource.Host, Name: l.Name},
		Possible: resource.KindPossible("wireguard")}
}

func (l WireGuardLink) link() tunnel { return tunnel{l.Name} }

func (l WireGuardLink) settings() rtnl.LinkChange {
	return rtnl.LinkChange{MTU: l.MTU, Alias: mark, Up: true}
}

// fixed returns the differences of what stays as it is for the life of a device.
func (l WireGuardLink) fixed(have *rtnl.Link) (drift resource.Drift) {
	drift.Want("type", "wireguard", have.Kind)
	return drift
}

// Ensure implements plan.Resource.
func (l WireGuardLink) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	have, err := l.link().own(w)
	if resource.ExceptNoLink(err) != nil {
		return false, err
	}
	if have != nil && l.fixed(have).Err() != nil {
		if err := rtnl.DelLink(w.Host, have.Index); err != nil {
			return false, err
		}
		have = nil
	}
	if have == nil {
		err := l.link().add(w, rtnl.NewLink{Kind: "wireguard", MTU: l.MTU})
		return err == nil, err
	}

	changed, err := l.link().set(w)
	if err != nil {
		return changed, err
	}
	change, lacks := resource.Lacks(have, l.settings())
	if len(lacks) == 0 {
		return changed, nil
	}
	return true, rtnl.SetLink(w.Host, l.Name, change)
}

// Verify implements plan.Resource.
func (l WireGuardLink) Verify(ctx context.Context, w *kernel.World) error {
	have, err := l.link().own(w)
	if err != nil {
		return err
	}
	drift := l.fixed(have)
	_, lacks := resource.Lacks(have, l.settings())
	drift = append(drift, lacks...)
	return append(drift, l.link().lacks(w)...).Err()
}

// Remove implements plan.Remover. It leaves a link that another program made.
func (l WireGuardLink) Remove(ctx context.Context, w *kernel.World) error { return l.link().remove(w) }

var _ plan.Remover = WireGuardLink{}
