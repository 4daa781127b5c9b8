package route

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/routing"
)

func (r route) change(key string, all *changes) error {
	do, err := verb(key, r.Action, Add, Replace, Del, Flush)
	if err != nil {
		return err
	}
	e := routing.RouteEntry{Link: all.r.IfName, Priority: r.Metric, Table: r.Table, MTU: r.MTU, AdvMSS: r.AdvMSS,
		Type: addr.Action(r.Type)}
	if types := []RouteType{Blackhole, Unreachable, Prohibit}; r.Type != "" && !slices.Contains(types, r.Type) {
		return oneOf(key+".type", r.Type, types)
	}
	v4, v6, err := r.Family.families(key, do == routing.Flush)
	if err != nil {
		return err
	}
	if do == routing.Flush {
		only := route{Action: r.Action, Table: r.Table, Family: r.Family}
		if r.Dst != "" || r.NextHops != nil || r.text() != only.text() {
			return bad("%s: flush takes family and table; want \"action\": \"del\" for one route", key)
		}
		e.V4, e.V6, e.Keep = v4, v6, all.gateways()
		all.add(key, do, e)
		return nil
	}
	if err := r.hops(key, &e); err != nil {
		return err
	}
	if err := r.destination(key, &e, v6); err != nil {
		return err
	}
	if err := r.complete(key, do, e); err != nil {
		return err
	}
	all.add(key, do, e)
	return nil
}

// text is all but the list, to be compared.
func (r route) text() [10]any {
	return [...]any{r.Via, r.OnLink, r.Scope, r.Type, r.Src, r.Metric, r.Table, r.MTU, r.AdvMSS, r.Family}
}

// hops reads the way.
func (r route) hops(key string, e *routing.RouteEntry) error {
	if r.Via != "" && r.NextHops != nil {
		return bad("%s: has via and nexthops; want one of the two", key)
	}
	if r.Via != "" {
		via, err := address(key+".via", r.Via, "the address of a router")
		if err != nil {
			return err
		}
		e.Hops = []routing.Hop{{Via: via, OnLink: r.OnLink}}
	} else if r.OnLink {
		return bad("%s.onlink: true: has no effect without via; in nexthops, each next hop has its own onlink", key)
	}
	for i, h := range r.NextHops {
		at := at(key+".nexthops", i)
		via, err := address(at+".via", h.Via, "the address of a router")
		if err != nil {
			return err
		}
		e.Hops = append(e.Hops, routing.Hop{Via: via, Weight: h.Weight, OnLink: h.OnLink})
	}
	if len(e.Hops) == 1 {
		e.Hops[0].Weight = 0
	}
	return nil
}

// destination reads where the route leads to, and from which address.
func (r route) destination(key string, e *routing.RouteEntry, v6 bool) (err error) {
	switch r.Dst {
	case "":
		return bad("%s.dst: is missing: want a subnet, such as 192.0.2.0/24, an address, or \"default\"", key)
	case "default":
		e.Dst = defaults()[0]
		if v6 || len(e.Hops) > 0 && e.Hops[0].Via.Is6() && r.Family == "" {
			e.Dst = defaults()[1]
		}
	default:
		if e.Dst, err = prefix(key+".dst", r.Dst); err != nil {
			return err
		}
	}
	for i, h := range e.Hops {
		where := key + ".via"
		if r.NextHops != nil {
			where = at(key+".nexthops", i) + ".via"
		}
		if err := router(where, h.Via, e.Dst); err != nil {
			return err
		}
	}
	if r.Src == "" {
		return nil
	}
	e.Src, err = address(key+".src", r.Src, "an address of the container")
	if err == nil && e.Src.Is4() != e.Dst.Addr().Is4() {
		err = bad("%s.src: %q: is not of the family of dst, %v", key, r.Src, e.Dst)
	}
	return err
}

// complete refuses a route with no way, and one with several that exclude each other.
func (r route) complete(key string, do routing.Verb, e routing.RouteEntry) error {
	ways := 0
	for _, is := range []bool{len(e.Hops) > 0, r.Scope != "", r.Type != ""} {
		if is {
			ways++
		}
	}
	switch {
	case r.Scope != "" && r.Scope != Link:
		return oneOf(key+".scope", r.Scope, []Scope{Link})
	case ways > 1:
		return bad("%s: has more than one of next hop, scope and type: want one", key)
	case ways == 0 && do != routing.Del:
		return bad("%s: %v: has no next hop: want via, nexthops, \"scope\": \"link\" or a type, such as \"blackhole\"",
			key,
			e.Dst)
	}
	return nil
}

// router refuses an address that no next hop to the destination can have.
func router(key string, via netip.Addr, dst netip.Prefix) error {
	switch {
	case via.IsUnspecified(), via.IsMulticast(), via.IsLoopback(), via.Zone() != "":
		return bad("%s: %q: want the address of a router, such as 192.0.2.1 or 2001:db8::1", key, via)
	case via.Is4() && dst.Addr().Is6():
		return bad("%s: %q: want an IPv6 address, for dst is %v", key, via, dst)
	}
	return nil
}

// numbers refuses what the kernel has no room for.
func numbers(key string, e routing.RouteEntry) error {
	switch {
	case e.Priority < 0 || e.Priority > mostNumber:
		return bad("%s.priority: %d: want 0 to %d", key, e.Priority, mostNumber)
	case e.Table < 0 || e.Table > mostNumber || e.Table == 255:
		return bad("%s.table: %d: want 1 to %d, but not 255, which is the kernel's own", key, e.Table, mostNumber)
	case e.MTU != 0 && (e.MTU < 68 || e.MTU > 65535):
		return bad("%s.mtu: %d: want 68 to 65535 bytes", key, e.MTU)
	case e.AdvMSS < 0 || e.AdvMSS > 65535:
		return bad("%s.advmss: %d: want 1 to 65535 bytes", key, e.AdvMSS)
	}
	return nil
}
