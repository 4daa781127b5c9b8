package routing

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
)

// A RouteEntry is a route through the container interface, the Subject of a Change. In a deletion, a zero field
// matches any value.
type RouteEntry struct {
	Link     string
	Dst      netip.Prefix // invalid: any, of a Flush
	V4, V6   bool         // which families a Flush is about
	Hops     []Hop        // none: the destination is on the link itself
	Src      netip.Addr
	Priority int // the metric
	Table    int // zero: that of the link, which is main or its VRF's
	MTU      int
	AdvMSS   int
	Type     addr.Action  // zero: unicast
	Keep     []netip.Addr // routers of the interface's addresses: a Flush leaves the way to them
}

// A Hop is a next hop of a route.
type Hop struct {
	Via    netip.Addr
	Weight int // among several, 1 to 256; zero: 1
	OnLink bool
}

func (r RouteEntry) kind() string { return "route" }

func (r RouteEntry) String() string {
	dst := ""
	switch {
	case !r.Dst.IsValid() && !r.V4:
		dst = "-6"
	case !r.Dst.IsValid() && !r.V6:
		dst = "-4"
	case r.Dst.IsValid() && r.Dst.Bits() > 0:
		dst = r.Dst.String()
	case r.Dst.IsValid() && r.Dst.Addr().Is6():
		dst = "-6 default"
	case r.Dst.IsValid():
		dst = "default"
	}
	words := []string{string(r.Type), dst}
	for _, h := range r.Hops {
		if len(r.Hops) > 1 {
			words = append(words, "nexthop")
		}
		words = append(words, resource.Opt("via", h.Via), resource.Opt("weight", h.Weight),
			resource.Flag("onlink", h.OnLink))
	}
	return resource.Line(append(words, r.route().Attrs())...)
}

// route is the entry without its next hops.
func (r RouteEntry) route() addr.Route {
	return addr.Route{Link: r.Link, Dst: r.Dst, Src: r.Src, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority,
		Table: r.Table}
}

// ready waits until the address that a route names has passed duplicate address detection on the interface.
func (r RouteEntry) ready(ctx context.Context, at site, link string) error {
	if !r.Src.Is6() {
		return nil
	}
	l, err := rtnl.LinkByIndex(at.ns, at.index)
	if err != nil || !l.Operational {
		return err
	}
	return addr.AwaitDAD(ctx, at.ns, link, r.Src, resource.KernelLimit)
}

func (r RouteEntry) list(at site) (list []rtnl.Message, err error) {
	for _, f := range resource.Families() {
		if !hasFamily(f, r.Dst.Addr(), r.V4, r.V6) {
			continue
		}
		all, err := rtnl.RouteMessages(at.ns, rtnl.RouteFilter{Family: f, Table: cmp.Or(r.Table, at.table)})
		if err != nil {
			return nil, err
		}
		list = append(list, slices.DeleteFunc(all, func(m rtnl.Message) bool { return len(m.Routes()) == 0 })...)
	}
	return list, nil
}

// hasFamily reports whether a family is that of an address, or, where there is none, one of those that are meant.
func hasFamily(f uint8, a netip.Addr, v4, v6 bool) bool {
	if a.IsValid() {
		return f == rtnl.Family(a)
	}
	return f == rtnl.IPv4 && v4 || f == rtnl.IPv6 && v6
}

func (r RouteEntry) message(at site) rtnl.Message {
	k := rtnl.Route{Dst: r.Dst, Src: r.Src, Priority: r.Priority, Table: cmp.Or(r.Table, at.table), MTU: r.MTU,
		AdvMSS: r.AdvMSS, Type: r.Type.RouteType(), Protocol: rtnl.ByBoot}
	if k.Type != rtnl.Unicast {
		return rtnl.NewRoute(at.ns, k, nil)
	}
	k.Link = at.index
	if len(r.Hops) == 0 && r.Dst.Addr().Is4() {
		k.Scope = rtnl.ScopeLink
	}
	if len(r.Hops) == 1 {
		k.Via, k.OnLink = r.Hops[0].Via, r.Hops[0].OnLink
	}
	if len(r.Hops) < 2 {
		return rtnl.NewRoute(at.ns, k, nil)
	}
	return rtnl.NewRoute(at.ns, k, r.hops(at))
}

func (r RouteEntry) hops(at site) (hops []rtnl.Route) {
	for _, h := range r.Hops {
		hops = append(hops, rtnl.Route{Via: h.Via, OnLink: h.OnLink, Weight: max(h.Weight, 1), Link: at.index})
	}
	return hops
}

// byLink reports whether all next hops of a route use the link.
func byLink(at site, hops []rtnl.Route) bool {
	return !slices.ContainsFunc(hops, func(h rtnl.Route) bool { return h.Link != at.index })
}

func (r RouteEntry) selected(at site, m rtnl.Message, flush bool) bool {
	hops := m.Routes()
	have := hops[0]
	if flush {
		return have.Type == rtnl.Unicast && byLink(at, hops) && have.Protocol != rtnl.ByKernel &&
			have.Protocol != rtnl.ByRA && !r.needed(at, have)
	}
	if have.Dst != r.Dst || have.Type != r.Type.RouteType() || r.Type == "" && !byLink(at, hops) {
		return false
	}
	if r.Priority != 0 && have.Priority != r.Priority || r.Src.IsValid() && have.Src != r.Src {
		return false
	}
	return !slices.ContainsFunc(r.Hops, func(want Hop) bool {
		return !slices.ContainsFunc(hops, func(h rtnl.Route) bool { return h.Via == want.Via })
	})
}

// needed reports whether the interface needs a route: to the subnets of its addresses, or to their gateways.
func (r RouteEntry) needed(at site, have rtnl.Route) bool {
	if !have.Via.IsValid() && have.Dst.IsSingleIP() && slices.Contains(r.Keep, have.Dst.Addr()) {
		return true
	}
	addrs, err := rtnl.Addrs(at.ns, at.index)
	return err != nil || slices.ContainsFunc(addrs, func(a rtnl.Addr) bool {
		return a.Prefix.Bits() <= have.Dst.Bits() && a.Prefix.Contains(have.Dst.Addr())
	})
}

func (r RouteEntry) occupies(at site, m rtnl.Message) bool {
	have := m.Routes()[0]
	return have.Dst == r.Dst && have.Priority == r.route().Metric() && have.Type != rtnl.Local
}

func (r RouteEntry) is(at site, m rtnl.Message) bool {
	return r.occupies(at, m) && r.differs(at, m) == nil
}

// differs returns the differences from another route to the same destination.
func (r RouteEntry) differs(at site, m rtnl.Message) error {
	var d resource.Drift
	hops := m.Routes()
	have := hops[0]
	if have.Type != r.Type.RouteType() {
		d.Want("type", r.Type.RouteType(), have.Type)
		return d.Err()
	}
	if r.Type == "" {
		d.Want("next hops", hopsText(r.want(at)), hopsText(hops))
		if !byLink(at, hops) {
			d.Add(spec.DiffersBy("dev", "is by another link"))
		}
	}
	return append(d, r.route().Compare(have)...).Err()
}

// want returns the next hops in the form in which the kernel lists them.
func (r RouteEntry) want(at site) []rtnl.Route {
	switch hops := r.hops(at); len(hops) {
	case 0:
		return []rtnl.Route{{Link: at.index}}
	case 1:
		hops[0].Weight = 0
		return hops
	default:
		return hops
	}
}

// hopsText returns next hops as text, in a fixed order.
func hopsText(hops []rtnl.Route) string {
	var words []string
	for _, h := range hops {
		words = append(words, cmp.Or(resource.Line(resource.Opt("via", h.Via), resource.Opt("weight", h.Weight),
			resource.Flag("onlink", h.OnLink)), "the link"))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// verify looks for the route in its table, and in tables to which a later plugin may have moved it (P16).
func (r RouteEntry) verify(ctx context.Context, w *kernel.World, at site) error {
	list, err := r.list(at)
	if err != nil {
		return err
	}
	for _, m := range list {
		if !r.occupies(at, m) {
			continue
		}
		if have := m.Routes(); r.Type != "" || byLink(at, have) {
			return r.differs(at, m)
		}
	}
	if r.Type != "" {
		return spec.Missing("")
	}
	k := r.route()
	if len(r.Hops) == 0 {
		return k.Verify(ctx, w)
	}
	var d resource.Drift
	for _, h := range r.Hops {
		k.Via, k.OnLink = h.Via, h.OnLink
		d.Add(k.Verify(ctx, w))
	}
	return d.Err()
}

func (r RouteEntry) said(at site, m rtnl.Message) string {
	var words []string
	for _, h := range m.Routes() {
		if h.Type != rtnl.Unicast {
			return fmt.Sprintf("a route of type %d to %v", h.Type, h.Dst)
		}
		words = append(words, said(at.ns, h))
	}
	return strings.Join(words, "; ")
}

// routes returns the entry's routes for a result. A result has no routes with several next hops, and none without a
// link.
func (r RouteEntry) routes() (list []spec.Route) {
	if r.Type != "" {
		return nil
	}
	rt := spec.Route{Dst: r.Dst, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority}
	if r.Table != 0 {
		rt.Table = &r.Table
	}
	onLink := int(rtnl.ScopeLink)
	if len(r.Hops) == 0 {
		rt.Scope = &onLink
		return []spec.Route{rt}
	}
	for _, h := range r.Hops {
		hop := rt
		if hop.GW = h.Via; h.OnLink {
			hop.Scope = &onLink
		}
		list = append(list, hop)
	}
	return list
}
