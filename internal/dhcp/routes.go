package dhcp

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/spec"
)

// ScopeLink is RT_SCOPE_LINK: the destination of a route is on the link. With a gateway it means that the gateway is on
// the link, even if no address has it in its subnet.
const ScopeLink = 253

// mostRoutes limits the number of routes in a configuration, because the file of each lease contains them and is
// limited to MaxFile.
const mostRoutes = 1024

// routes returns the configured routes of one family.
func (c Conf) routes(is4 bool) (list []spec.Route, err error) {
	if len(c.Routes) > mostRoutes {
		return nil, spec.Errorf(spec.CodeConfig, "ipam.routes: %d routes: want at most %d", len(c.Routes), mostRoutes)
	}
	for i, r := range c.Routes {
		if r.GW.IsValid() && r.GW.Is4() != r.Dst.Addr().Is4() {
			return nil, spec.Errorf(spec.CodeConfig, "ipam.routes[%d].gw: %v is not of the family of %v", i, r.GW,
				r.Dst)
		}
		if r.Dst = r.Dst.Masked(); r.Dst.Addr().Is4() == is4 {
			list = append(list, r)
		}
	}
	return list, nil
}

// Complete returns a lease with the configured routes added to the server's. A configured route replaces a route of the
// server with the same destination, table and metric. A route without a gateway leads to the router of the lease; it
// gets the MTU of the lease if that is smaller than the link's.
func (a Ask) Complete(l *Lease, linkMTU int) *Lease {
	if l == nil || len(a.Routes) == 0 {
		return l
	}
	out := *l
	out.Routes = slices.DeleteFunc(slices.Clone(l.Routes), func(have spec.Route) bool {
		return slices.ContainsFunc(a.Routes, func(r spec.Route) bool { return a.place(r) == a.place(have) })
	})
	gw := l.router()
	for _, r := range a.Routes {
		if onLink := ScopeLink; !r.GW.IsValid() && gw.IsValid() && (r.Scope == nil || *r.Scope != onLink) {
			r.GW = gw
			if gw.Is4() && !slices.ContainsFunc(l.Addresses, func(a Address) bool { return a.Prefix.Contains(gw) }) {
				r.Scope = &onLink
			}
		}
		if r.MTU == 0 && r.Dst.Addr().Is4() && l.MTU < linkMTU {
			r.MTU = l.MTU
		}
		out.Routes = append(out.Routes, r)
	}
	return &out
}

// A place is what distinguishes routes in the kernel: a route with another place is added, not replaced.
type place struct {
	dst           netip.Prefix
	table, metric int
}

func (a Ask) place(r spec.Route) place {
	const main = 254
	p := place{r.Dst.Masked(), main, cmp.Or(r.Priority, a.Metric)}
	if r.Table != nil {
		p.table = cmp.Or(*r.Table, main)
	}
	return p
}

// router returns the default gateway of the lease, or an invalid address.
func (l *Lease) router() netip.Addr {
	if l.Gateway.IsValid() {
		return l.Gateway
	}
	for _, r := range l.Routes {
		if r.Dst.Bits() == 0 && r.GW.IsValid() && !r.GW.IsUnspecified() {
			return r.GW
		}
	}
	return netip.Addr{}
}
