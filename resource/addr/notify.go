package addr

import (
	"context"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
)

// A Notify makes a link of the container tell its neighbours its addresses when it is set up. It is for links whose
// MAC address cannot be changed, such as an ipvlan; for other links, see Announce.
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

// Verify implements plan.Resource. There is nothing left to compare after the announcement.
func (n Notify) Verify(ctx context.Context, w *kernel.World) error { return nil }
