package routing

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// compose returns what to create and to move, from the existing rules and routes. Sure means that the link's IPv6
// addresses have passed duplicate address detection.
func (s SourceRouting) compose(ns *kernel.NS, index int, sure bool) (rec sourced, err error) {
	used := map[int]bool{0: true}
	main := map[uint8][]rtnl.Route{} // the link's own
	if s.Table == 0 {
		routes, err := tablesInUse(ns, used)
		if err != nil {
			return rec, err
		}
		for _, r := range routes {
			if r.Table == rtnl.MainTable && r.Link == index && r.Type == rtnl.Unicast {
				family := rtnl.Family(r.Dst.Addr())
				main[family] = append(main[family], r)
			}
		}
	}
	for _, src := range s.Sources {
		table := s.Table
		if table == 0 {
			for table = firstTable; used[table] || table >= 253 && table <= 255; table++ {
			}
			used[table] = true
			rec.Made = append(rec.Made, s.table(src, main[rtnl.Family(src.Prefix.Addr())], index, table)...)
		}
		rec.Rules = append(rec.Rules, sourceRule{src.Prefix.Addr(), table})
	}
	if s.Table != 0 {
		return rec, nil
	}
	if !sure { // the rules say by themselves which address it is
		for i := range rec.Made {
			if rec.Made[i].Src.Is6() {
				rec.Made[i].Src = netip.Addr{}
			}
		}
	}
	for _, family := range resource.Families() {
		if !slices.ContainsFunc(s.Sources, func(src Source) bool { return rtnl.Family(src.Prefix.Addr()) == family }) {
			continue
		}
		for _, r := range main[family] {
			if s.competes(r) {
				rec.Moved = append(rec.Moved, r)
			}
		}
		if s.Hints && (sure || family == rtnl.IPv4) {
			rec.Made = append(rec.Made, s.hints(family, main[family], index)...)
		}
	}
	// Those on the link first: without them, those by a router could not be put back.
	slices.SortStableFunc(rec.Moved, func(a, b rtnl.Route) int { return cmp.Compare(a.Via.BitLen(), b.Via.BitLen()) })
	return rec, nil
}

// tablesInUse adds the routing tables that rules and routes use, and returns the routes.
func tablesInUse(ns *kernel.NS, used map[int]bool) (all []rtnl.Route, err error) {
	for _, family := range resource.Families() {
		rules, err := rtnl.Rules(ns, family)
		if err != nil {
			return nil, err
		}
		routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: family})
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			used[r.Table] = true
		}
		for _, r := range routes {
			used[r.Table] = true
		}
		all = append(all, routes...)
	}
	return all, nil
}

// competes reports whether a route is one that other links may have too: to what is on the link itself as well, for
// another may be on the same subnet. With hints the link keeps those, and so it keeps those to link-local neighbours,
// and to the subnets of addresses that are no sources. One that a router advertised would soon be back.
func (s SourceRouting) competes(r rtnl.Route) bool {
	switch {
	case r.Protocol == rtnl.ByRA:
		return false
	case r.Dst.Bits() == 0, r.Via.IsValid():
		return true
	case s.Hints, r.Dst.Addr().Is6() && (r.Dst.Addr().IsLinkLocalUnicast() || r.Dst.Addr().IsMulticast()):
		return false
	}
	return r.Protocol != rtnl.ByKernel || slices.ContainsFunc(s.Sources,
		func(src Source) bool { return src.Prefix.Masked() == r.Dst })
}

// table is the routes of the source's own table: to its subnet, then the link's that are not another source's, and
// a default route.
func (s SourceRouting) table(src Source, main []rtnl.Route, index, table int) (list []rtnl.Route) {
	subnet := src.route(index, table)
	if !src.Prefix.IsSingleIP() {
		list = append(list, subnet)
	}
	var routed []rtnl.Route // to be added when their routers can be reached
	hasDefault := false
	for _, r := range main {
		switch {
		case r.Dst == subnet.Dst && !r.Via.IsValid(), !s.belongs(r, src):
			continue
		case r.Dst.Bits() == 0 && src.Always:
			continue
		}
		hasDefault = hasDefault || r.Dst.Bits() == 0
		r.Table, r.Protocol = table, rtnl.OurProtocol
		if r.Via.IsValid() {
			routed = append(routed, r)
		} else {
			list = append(list, r)
		}
	}
	if src.Via.IsValid() && !hasDefault {
		r := rtnl.Route{Dst: netip.PrefixFrom(src.Prefix.Addr(), 0).Masked(), Via: src.Via, Link: index, Table: table,
			Type: rtnl.Unicast, Protocol: rtnl.OurProtocol}
		// A router outside of the subnet is on the link all the same, or the address would be of no use.
		r.OnLink = !(src.Via.Is6() && src.Via.IsLinkLocalUnicast()) &&
			(src.Prefix.IsSingleIP() || !src.Prefix.Contains(src.Via))
		routed = append(routed, r)
	}
	return append(list, routed...)
}

// route is the one to the source's subnet.
func (src Source) route(index, table int) rtnl.Route {
	r := rtnl.Route{Dst: src.Prefix.Masked(), Src: src.Prefix.Addr(), Link: index, Table: table, Type: rtnl.Unicast,
		Protocol: rtnl.OurProtocol}
	if r.Src.Is4() {
		r.Scope = rtnl.ScopeLink
	}
	return r
}

// belongs reports whether a route of the link is for the source: its gateway or its source address is in the source's
// subnet, or in the subnet of no other source.
func (s SourceRouting) belongs(r rtnl.Route, src Source) bool {
	in := func(p netip.Prefix) bool { return p.Contains(r.Src) || p.Contains(r.Via) }
	return in(src.Prefix) || !slices.ContainsFunc(s.Sources, func(other Source) bool { return in(other.Prefix) })
}

// hints are routes of the main table to the subnets of the sources that name the address to use, where the ones
// that the kernel made do not. They stand in front of those, so that these need not be put back.
func (s SourceRouting) hints(family uint8, main []rtnl.Route, index int) (list []rtnl.Route) {
	for _, src := range s.Sources {
		r := src.route(index, rtnl.MainTable)
		if rtnl.Family(r.Src) != family || src.Prefix.IsSingleIP() {
			continue
		}
		same := func(have rtnl.Route) bool { return have.Dst == r.Dst && !have.Via.IsValid() }
		if r.Src.Is6() {
			r.Priority = 255 // the kernel's own have 256
		}
		hinted := slices.ContainsFunc(main, func(have rtnl.Route) bool {
			return same(have) && (have.Src == r.Src || have.Priority <= r.Priority)
		})
		if !hinted && !slices.ContainsFunc(list, same) {
			list = append(list, r)
		}
	}
	return list
}

// verifyTable compares the source's table with the record. Without a record, it checks for the routes that must
// exist.
func (s SourceRouting) verifyTable(ns *kernel.NS, index int, src Source, table int, rec sourced, inVRF bool) error {
	have, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.Family(src.Prefix.Addr()), Table: table, Link: index})
	if err != nil {
		return err
	}
	want := slices.DeleteFunc(slices.Clone(rec.Made), func(r rtnl.Route) bool { return r.Table != table })
	if len(want) == 0 {
		want = s.table(src, nil, index, table)
	}
	if inVRF {
		want = withoutSources(want)
	}
	return missing(ns, want, have)
}

// verifyMain checks that the moved routes are not in the main table, and that the hints are. A VRF takes the hints
// away.
func (s SourceRouting) verifyMain(ns *kernel.NS, index int, rec sourced, inVRF bool) error {
	var d resource.Drift
	for _, family := range resource.Families() {
		have, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable, Link: index})
		if err != nil {
			return err
		}
		hints := slices.DeleteFunc(slices.Clone(rec.Made), func(r rtnl.Route) bool {
			return inVRF || r.Table != rtnl.MainTable || rtnl.Family(r.Dst.Addr()) != family
		})
		d.Add(missing(ns, hints, have))
		for _, r := range rec.Moved {
			if slices.ContainsFunc(have, func(h rtnl.Route) bool { return sameRoute(h, r) }) {
				d.Add(spec.DiffersBy("table", "%s: is back in the main table, where it competes with other links'",
					said(ns, r)))
			}
		}
	}
	return d.Err()
}

// sameRoute reports whether the kernel treats two routes as the same, whichever program made them.
func sameRoute(a, b rtnl.Route) bool {
	return a.Dst == b.Dst && a.Via == b.Via && a.Link == b.Link && a.Priority == b.Priority && a.Table == b.Table
}

// missing names those of want that are not in have as they were made.
func missing(ns *kernel.NS, want, have []rtnl.Route) error {
	var d resource.Drift
	for _, r := range want {
		same := func(h rtnl.Route) bool {
			return h.Dst == r.Dst && h.Via == r.Via && (h.Priority == r.Priority || r.Priority == 0) && h.Type == r.Type
		}
		i := slices.IndexFunc(have, same)
		if i < 0 {
			d.Add(spec.Missing(said(ns, r) + ":"))
			continue
		}
		var fields resource.Drift
		fields.Want("src", r.Src, have[i].Src)
		fields.Want("mtu", r.MTU, have[i].MTU)
		fields.Want("advmss", r.AdvMSS, have[i].AdvMSS)
		if err := fields.Err(); err != nil {
			d.Add(fmt.Errorf("%s: %w", said(ns, r), err))
		}
	}
	return d.Err()
}

// removeOthers removes what no record tells of: what is ours by its protocol, and, where nothing at all was
// remembered, the rules that the reference made for the addresses that the link has and is said to have.
func (s SourceRouting) removeOthers(ns *kernel.NS, index int, known bool) error {
	var errs []error
	addrs, err := rtnl.Addrs(ns, index)
	if err != nil {
		return err
	}
	for _, family := range resource.Families() {
		routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: family, Link: index, Protocol: rtnl.OurProtocol})
		errs = append(errs, err)
		for _, r := range routes {
			errs = append(errs, rtnl.DelRoute(ns, r))
		}
		rules, err := rtnl.Rules(ns, family)
		errs = append(errs, err)
		for _, r := range rules {
			has := slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return addr.RuleFromAddr(r, a.Prefix.Addr()) })
			if has && (r.Protocol == rtnl.OurProtocol && r.Priority == sourcePriority || !known && s.byReference(r)) {
				errs = append(errs, rtnl.DelRule(ns, r))
			}
		}
	}
	return errors.Join(errs...)
}

// byReference reports whether the reference's plugin may have made a rule for one of the sources. It sets no
// protocol.
func (s SourceRouting) byReference(r rtnl.Rule) bool {
	table := r.Table >= firstTable && (r.Table < 253 || r.Table > 255)
	if s.Table != 0 {
		table = r.Table == s.Table
	}
	return table && r.Protocol == unix.RTPROT_UNSPEC && r.Priority < rtnl.MainPriority &&
		slices.ContainsFunc(s.Sources, func(src Source) bool { return src.Prefix.Addr() == r.From.Addr() })
}

// said returns a route in the words of ip(8).
func said(ns *kernel.NS, r rtnl.Route) string {
	return addr.Route{Link: rtnl.NameOf(ns, r.Link), Dst: r.Dst, Via: r.Via, Src: r.Src, Priority: r.Priority,
		Table: r.Table, OnLink: r.OnLink}.String()
}

func unreachable(err error) bool {
	return errors.Is(err, rtnl.ErrNoLink) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENETUNREACH) ||
		errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.EINVAL)
}
