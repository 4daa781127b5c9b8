package resource

import (
	"context"
	"errors"
	"net/netip"
	"strconv"

	"github.com/fairlead-cni/fairlead/kernel"
)

// A Route is a route by a link.
type Route struct {
	Where    Where
	Link     string
	Dst      netip.Prefix // 0.0.0.0/0 or ::/0: default
	Via      netip.Addr
	Src      netip.Addr
	MTU      int
	AdvMSS   int
	Priority int // the metric
	Table    int // zero: main
	Scope    int // counts only where HasScope is set, for zero is the scope "global"
	HasScope bool
	OnLink   bool // the next hop is on the link, whatever the addresses say
}

func (r Route) String() string {
	dst, scope := r.Dst.String(), ""
	if r.Dst.IsValid() && r.Dst.Bits() == 0 {
		dst = "default"
		if r.Dst.Addr().Is6() {
			dst = "-6 default"
		}
	}
	if r.HasScope {
		scope = "scope " + strconv.Itoa(r.Scope)
	}
	return line("route", dst, opt("via", r.Via), "dev "+r.Where.String()+r.Link, opt("src", r.Src), opt("metric", r.Priority),
		opt("table", r.Table), scope, flag("onlink", r.OnLink), opt("mtu", r.MTU), opt("advmss", r.AdvMSS))
}

// Ensure implements plan.Resource. A default route that another link holds at the same metric is left
// as it is and nothing is changed (P25): Present tells whether the route is there.
func (r Route) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Present reports whether the kernel has the route, for the result names only what was applied.
func (r Route) Present(ctx context.Context, w *kernel.World) (bool, error) {
	return false, errors.ErrUnsupported
}

// Verify implements plan.Resource.
func (r Route) Verify(ctx context.Context, w *kernel.World) error { return errors.ErrUnsupported }
