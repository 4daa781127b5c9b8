package daemon

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// taken reports whether the kernel found that another machine has an address of the lease. The kernel checks IPv6
// addresses when the interface plugin adds them to the link.
func taken(link reached, l *dhcp.Lease) bool {
	have, _ := rtnl.Addrs(link.NS, link.Index)
	return slices.ContainsFunc(have, func(a rtnl.Addr) bool {
		return a.DADFailed &&
			slices.Contains(l.Prefixes(), a.Prefix)
	})
}

// takeOff removes the addresses of leases from the link, and reports whether any was there.
func takeOff(link reached, of ...*dhcp.Lease) (was bool, err error) {
	have, err := rtnl.Addrs(link.NS, link.Index)
	for _, a := range have {
		if slices.ContainsFunc(of,
			func(l *dhcp.Lease) bool { return l != nil && slices.Contains(l.Prefixes(), a.Prefix) }) {
			was = true
			err = errors.Join(err, rtnl.DelAddr(link.NS, link.Index, a))
		}
	}
	return was, err
}

// on reports whether any address of the lease is on the link.
func on(link reached, l *dhcp.Lease) bool {
	have, _ := rtnl.Addrs(link.NS, link.Index)
	return slices.ContainsFunc(have, func(a rtnl.Addr) bool { return slices.Contains(l.Prefixes(), a.Prefix) })
}

// exchange replaces the lease old on the link by l. It adds only the parts of l whose counterpart of old was on the
// link, unless must is set: if the interface plugin did not add the address, as for a virtual machine, the daemon does
// not add it either.
func exchange(link reached, old, l *dhcp.Lease, metric int, must bool) error {
	have, err := rtnl.Addrs(link.NS, link.Index)
	if err != nil {
		return err
	}
	like, there := rtnl.Addr{}, must
	for _, a := range have {
		if slices.Contains(old.Prefixes(), a.Prefix) {
			there, like = true, a
		}
	}
	if !there {
		return nil
	}
	before, err := rtnl.Routes(link.NS, rtnl.RouteFilter{Family: rtnl.IPv4, Link: link.Index})
	if err != nil {
		return err
	}
	stay := withPrefixes(like, l.Prefixes())
	// Before the old ones go, so that what is by the link stays where the kernel lets it. One that fails is tried again
	// below.
	ensureAddrs(link, nil, stay)
	w := &kernel.World{Container: link.NS}
	var errs []error
	ctx := context.Background()
	for _, r := range old.Routes {
		k := route(link.Name, r, metric)
		if slices.ContainsFunc(l.Routes, func(n spec.Route) bool { return route(link.Name, n, metric) == k }) ||
			r.Dst.Addr().Is6() {
			continue // IPv6's are a router's, and end when that says so, whatever a server gives
		}
		gone := rtnl.Route{Dst: k.Dst, Via: k.Via, Link: link.Index, Priority: k.Priority, Scope: uint8(k.Scope),
			Table: cmp.Or(k.Table, rtnl.MainTable)}
		before = slices.DeleteFunc(before, func(b rtnl.Route) bool {
			return b.Dst == gone.Dst && b.Via == gone.Via && b.Priority == gone.Priority && b.Table == gone.Table
		})
		if there, err := k.Present(ctx, w); err == nil && there {
			errs = append(errs, rtnl.DelRoute(link.NS, gone))
		}
	}
	for _, a := range have {
		switch {
		case !slices.Contains(old.Prefixes(), a.Prefix):
			stay = append(stay, a)
		case !slices.Contains(l.Prefixes(), a.Prefix):
			errs = append(errs, rtnl.DelAddr(link.NS, link.Index, a))
		}
	}
	// With an address the kernel deletes the others of its subnet that came later (unless promote_secondaries is set),
	// and with the last address all routes by the link.
	now, err := rtnl.Addrs(link.NS, link.Index)
	errs = append(errs, err, ensureAddrs(link, now, stay))
	for _, r := range l.Routes {
		_, err := route(link.Name, r, metric).Ensure(ctx, w)
		errs = append(errs, err)
	}
	restore(link, before)
	_, err = addr.Announce{Link: link.Name, Addrs: l.Prefixes()}.Ensure(ctx, w)
	return errors.Join(append(errs, err)...)
}

// withPrefixes are addresses that are like one in all but the prefix.
func withPrefixes(like rtnl.Addr, prefixes []netip.Prefix) (all []rtnl.Addr) {
	for _, p := range prefixes {
		like.Prefix = p
		all = append(all, like)
	}
	return all
}

// ensureAddrs adds the missing addresses.
func ensureAddrs(link reached, there, want []rtnl.Addr) (err error) {
	for _, a := range want {
		if slices.ContainsFunc(there, func(b rtnl.Addr) bool { return a.Prefix == b.Prefix }) {
			continue
		}
		if e := rtnl.AddAddr(link.NS, link.Index, a); e != nil && !errors.Is(e, fs.ErrExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// restore adds routes of other programs that the kernel deleted together with an address. If a route's gateway can no
// longer be reached, a warning is logged.
func restore(link reached, before []rtnl.Route) {
	now, err := rtnl.Routes(link.NS, rtnl.RouteFilter{Family: rtnl.IPv4, Link: link.Index})
	if err != nil {
		slog.Warn("read routes", "link", link.Name, "error", err)
		return
	}
	for _, r := range before {
		if r.Protocol == unix.RTPROT_KERNEL || r.Type != rtnl.Unicast || slices.Contains(now, r) {
			continue
		}
		if err := rtnl.AddRoute(link.NS, r, true); err != nil && !errors.Is(err, fs.ErrExist) {
			slog.Warn("a route was removed together with the address of a lease, and cannot be restored",
				"link", link.Name, "to", r.Dst,
				"via", r.Via, "error", err)
		}
	}
}

// route returns a route of a lease with the metric of ADD; 0 is the kernel's default.
func route(link string, r spec.Route, metric int) addr.Route {
	k := addr.Route{Link: link, Dst: r.Dst, Via: r.GW, MTU: r.MTU, AdvMSS: r.AdvMSS,
		Priority: cmp.Or(r.Priority, metric)}
	if r.Table != nil {
		k.Table = *r.Table
	}
	if k.Via.IsValid() && k.Via.IsUnspecified() { // on the link
		k.Via = netip.Addr{}
	}
	switch {
	case r.Scope == nil:
	case k.Via.IsValid() && *r.Scope == dhcp.ScopeLink:
		k.OnLink = true
	default:
		k.Scope, k.HasScope = *r.Scope, true
	}
	if k.Via == (netip.Addr{}) && !k.HasScope && r.Dst.Addr().Is4() {
		k.Scope, k.HasScope = dhcp.ScopeLink, true
	}
	return k
}
