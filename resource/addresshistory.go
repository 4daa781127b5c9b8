package resource

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
)

// An AddressHistory writes down which addresses an attachment, and the host on its behalf, are about to have on a bridge, so that an
// Announce knows which are new there. It comes before the addresses: an ADD may be killed at any time. Without addresses, the
// attachment may take any.
type AddressHistory struct {
	Bridge string
	Addrs  []netip.Addr
}

func (h AddressHistory) String() string {
	if len(h.Addrs) == 0 {
		return line("record of host/"+h.Bridge, "addresses unknown")
	}
	s := make([]string, len(h.Addrs))
	for i, a := range h.Addrs {
		s[i] = a.String()
	}
	return line("record of host/"+h.Bridge, "addresses "+strings.Join(s, ", "))
}

// Ensure implements plan.Resource. What it writes ends with the boot, and is never taken back.
func (h AddressHistory) Ensure(_ context.Context, w *kernel.World) (bool, error) {
	history := w.Memory.History(h.Bridge)
	if len(h.Addrs) == 0 {
		return false, history.Blur()
	}
	return false, history.Hold(h.Addrs...)
}

// Verify implements plan.Resource. An attachment of an earlier version has none, and that is no drift.
func (h AddressHistory) Verify(context.Context, *kernel.World) error { return nil }

// onlyOurPorts reports whether all ports of a bridge are host ends as we name them. One whose name was chosen counts as anybody's.
func onlyOurPorts(w *kernel.World, bridge string) bool {
	names, err := w.Host.PortNames(bridge)
	return err == nil && !slices.ContainsFunc(names, func(name string) bool { return !kernel.IsLinkName("veth", name) })
}
