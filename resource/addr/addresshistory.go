package addr

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// An AddressHistory records which addresses an attachment, and the host for it, are about to have on a bridge. An
// Announce reads the history to find out which addresses are new on the bridge. The record comes before the
// addresses, because an ADD may be killed at any time. Without addresses, it records that the attachment may take any
// address.
type AddressHistory struct {
	Bridge string
	Addrs  []netip.Addr
}

func (h AddressHistory) String() string {
	addrs := cmp.Or(resource.Addrs("addresses", h.Addrs), "addresses unknown")
	return resource.Line("record of host/"+h.Bridge, addrs)
}

// Ensure implements plan.Resource. The record lasts until the next boot, and no roll-back removes it.
func (h AddressHistory) Ensure(_ context.Context, w *kernel.World) (bool, error) {
	history := w.Store.History(h.Bridge)
	if len(h.Addrs) == 0 {
		return false, history.Blur()
	}
	return false, history.Hold(h.Addrs...)
}

// Verify implements plan.Resource. It finds no difference, because an attachment of an earlier version has no record.
func (h AddressHistory) Verify(context.Context, *kernel.World) error { return nil }

// onlyOurPorts reports whether all ports of a bridge are host-side interfaces of this program. It looks at each port
// once, because the kernel does not give its index to another link while the port exists.
func onlyOurPorts(w *kernel.World, bridge string) bool {
	history := w.Store.History(bridge)
	ports, err := rtnl.PortIndexes(w.Host, bridge)
	if err != nil {
		return false
	}
	slices.Sort(ports)
	known := history.Ports()
	if slices.Equal(ports, known) {
		return true
	}
	foreign := slices.ContainsFunc(ports, func(index int32) bool {
		if _, seen := slices.BinarySearch(known, index); seen {
			return false
		}
		l, err := rtnl.LinkByIndex(w.Host, int(index))
		return !errors.Is(err, rtnl.ErrNoLink) && (err != nil || l.Kind != "veth" || !identity.OfGroup(l.Group))
	})
	if !foreign {
		history.SetPorts(ports)
	}
	return !foreign
}
