package addr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A Route is a route through a link.
type Route struct {
	Where    resource.Where
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
	dst := r.Dst.String()
	if r.Dst.IsValid() && r.Dst.Bits() == 0 {
		dst = "default"
		if r.Dst.Addr().Is6() {
			dst = "-6 default"
		}
	}
	return resource.Line("route", dst, resource.Opt("via", r.Via), "dev "+r.Where.String()+r.Link, r.Attrs())
}

// Attrs returns the attributes in the words of ip(8).
func (r Route) Attrs() string {
	scope := ""
	if r.HasScope {
		scope = "scope " + strconv.Itoa(r.Scope)
	}
	return resource.Line(resource.Opt("src", r.Src), resource.Opt("metric", r.Priority), resource.Opt("table", r.Table),
		scope, resource.Flag("onlink", r.OnLink), resource.Opt("mtu", r.MTU), resource.Opt("advmss", r.AdvMSS))
}

// Traits implements resource.Describer.
func (r Route) Traits() resource.Traits {
	is := resource.Traits{On: resource.Iface{Where: r.Where, Name: r.Link}, Object: r.Dst.String()}
	if r.Where == resource.Host {
		is.Network, is.Fix = resource.Network{Gateway: true}, r.Ensure
	}
	return is
}

// Ensure implements plan.Resource. If another link has a default route with the same metric, Ensure changes nothing
// (P25). Present tells whether the route exists.
func (r Route) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, index, err := r.Where.Index(w, r.Link)
	if err != nil {
		return false, err
	}
	k := rtnl.Route{Dst: r.Dst, Via: r.Via, Src: r.Src, Link: index, Priority: r.Priority, Table: r.table(),
		Scope: uint8(r.Scope), OnLink: r.OnLink, MTU: r.MTU, AdvMSS: r.AdvMSS, Protocol: rtnl.ByBoot}
	if !r.HasScope && !r.Via.IsValid() && r.Dst.Addr().Is4() {
		k.Scope = rtnl.ScopeLink
	}
	err = rtnl.AddRoute(ns, k, r.Dst.Bits() == 0)
	if r.Dst.Bits() == 0 && errors.Is(err, fs.ErrExist) {
		if holder, err := r.holder(ns, index); err != nil {
			return false, err
		} else if holder != "" {
			slog.Info("a default route is there already, and this one is left out", "route", r.String(), "held", holder)
			return false, nil
		}
		// What a router advertised the kernel keeps as long as that router says; added once more, it would stay for
		// ever.
		if have, err := r.find(w); err != nil || have != nil && have.Protocol == rtnl.ByRA {
			return false, errors.Join(err, r.Verify(ctx, w))
		}
		err = rtnl.AddRoute(ns, k, false) // it is this link's own, by another router maybe
	}
	if errors.Is(err, fs.ErrExist) {
		return false, r.Verify(ctx, w) // equal in what tells routes apart, not in all
	}
	unreachable := errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH)
	if unreachable && r.Via.IsValid() && !r.OnLink {
		err = fmt.Errorf("%w (no address of %s has %v in its subnet)", err, r.Link, r.Via)
	}
	if err != nil && r.Via.IsValid() && (unreachable || errors.Is(err, unix.EINVAL)) {
		err = spec.AsError(err, 0).WithHint(
			"Give the route a router in a subnet of the container's (gateway, or gw of the route); " +
				"of one that is on the link without a subnet the route has \"scope\": 253. `fairlead net ls` says in " +
				"which file it is.")
	}
	if err != nil {
		return false, fmt.Errorf("add route: %w", err)
	}
	return true, nil
}

// holder is the link that has the default route of this metric, or empty if it is our own.
func (r Route) holder(ns *kernel.NS, ours int) (string, error) {
	list, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: r.family(), Table: r.table()})
	if err != nil {
		return "", err
	}
	other := ""
	for _, have := range list {
		if have.Dst.Bits() != 0 || have.Priority != r.Metric() {
			continue
		}
		if have.Link == ours {
			return "", nil
		}
		other = "no link"
		if l, err := rtnl.LinkByIndex(ns, have.Link); err == nil {
			other = l.Name
		}
	}
	return other, nil
}

func (r Route) family() uint8 { return rtnl.Family(r.Dst.Addr()) }

func (r Route) table() int { return cmp.Or(r.Table, rtnl.MainTable) }

// Metric returns the metric that the kernel uses for Priority: for IPv6, 0 means 1024.
func (r Route) Metric() int {
	if r.Priority == 0 && r.Dst.Addr().Is6() {
		return 1024
	}
	return r.Priority
}

// find is the route as the kernel has it, or nil. Without a table of its own it may be in another than the main one
// by now, for a later plugin of the chain may have moved it there (P16): where packets from an address of the link
// are looked up, and then a default route may have got another router, or where those of a VRF are.
func (r Route) find(w *kernel.World) (*rtnl.Route, error) {
	ns, index, err := r.Where.Index(w, r.Link)
	if err != nil {
		return nil, err
	}
	list, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: r.family(), Table: r.Table, Link: index})
	if err != nil {
		return nil, err
	}
	elsewhere := list[:0:0]
	for _, have := range list {
		if have.Dst != r.Dst.Masked() || have.Type != rtnl.Unicast || r.Priority != 0 && have.Priority != r.Priority {
			continue
		}
		if have.Table == r.table() && have.Via == r.Via {
			return &have, nil
		}
		if r.Table == 0 && (have.Via == r.Via || r.Dst.Bits() == 0) {
			elsewhere = append(elsewhere, have)
		}
	}
	if len(elsewhere) == 0 {
		return nil, nil
	}
	leads, err := r.tables(ns, index)
	for _, have := range elsewhere {
		if have.Table != rtnl.MainTable && leads(have) {
			return &have, err
		}
	}
	return nil, err
}

// tables tells whether packets of the link are looked up in the table of a route.
func (r Route) tables(ns *kernel.NS, index int) (leads func(rtnl.Route) bool, err error) {
	vrf, err := resource.VRFOf(ns, index)
	addrs, aerr := rtnl.Addrs(ns, index)
	rules, rerr := rtnl.Rules(ns, r.family())
	return func(have rtnl.Route) bool {
		return vrf != nil && have.Table == int(vrf.Data.Table) && have.Via == r.Via ||
			slices.ContainsFunc(rules, func(rule rtnl.Rule) bool {
				return rule.Table == have.Table && slices.ContainsFunc(addrs,
					func(a rtnl.Addr) bool { return RuleFromAddr(rule, a.Prefix.Addr()) })
			})
	}, errors.Join(err, aerr, rerr)
}

// Present reports whether the kernel has the route. A result lists only routes that exist.
func (r Route) Present(ctx context.Context, w *kernel.World) (bool, error) {
	have, err := r.find(w)
	return have != nil, err
}

// Verify implements plan.Resource.
func (r Route) Verify(ctx context.Context, w *kernel.World) error {
	have, err := r.find(w)
	if err != nil {
		return err
	}
	if have == nil {
		return spec.Missing("")
	}
	return r.Compare(*have).Err()
}

// Compare compares the attributes of a route to the same destination.
func (r Route) Compare(have rtnl.Route) (d resource.Drift) {
	d.WantIfSet("src", r.Src, have.Src)
	d.WantIfSet("mtu", r.MTU, have.MTU)
	d.WantIfSet("advmss", r.AdvMSS, have.AdvMSS)
	if r.HasScope && r.Dst.Addr().Is4() { // of IPv6 the kernel keeps none
		d.Want("scope", r.Scope, have.Scope)
	}
	d.WantIfSet("onlink", r.OnLink, have.OnLink)
	return d
}
