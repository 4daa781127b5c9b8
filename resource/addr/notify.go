package addr

import (
	"context"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
)

// A Notify is a link of the container that tells its neighbours of its addresses when it is set up. It is for those
// whose own address cannot be changed, which is what Announce does: an ipvlan.
type Notify struct {
	Link  string
	Addrs []netip.Prefix
}

func (n Notify) String() string { return "notify on cont/" + n.Link }

// Ensure implements plan.Resource.
func (n Notify) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, l, err := resource.Container.Link(w, n.Link)
	if err != nil {
		return false, err
	}
	return Announce{Link: n.Link, Addrs: n.Addrs}.Notify(ns, l)
}

// Verify implements plan.Resource. What was told once is told.
func (n Notify) Verify(ctx context.Context, w *kernel.World) error { return nil }
