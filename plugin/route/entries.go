package route

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/routing"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Action is what becomes of a route, a rule or a neighbour.
type Action string

// The Actions, as ip(8) calls them.
const (
	Add     Action = "add"
	Replace Action = "replace"
	Del     Action = "del"
	Flush   Action = "flush"
)

// A RuleAction is what becomes of a rule. Rules have no place that another could take.
type RuleAction string

// The RuleActions.
const (
	AddRule    RuleAction = "add"
	DelRule    RuleAction = "del"
	FlushRules RuleAction = "flush"
)

// A RouteType is what becomes of packets that are led nowhere.
type RouteType string

// The RouteTypes beside the empty one, by which a route leads somewhere.
const (
	Blackhole   RouteType = "blackhole"
	Unreachable RouteType = "unreachable"
	Prohibit    RouteType = "prohibit"
)

// A Family is one of addresses.
type Family string

// The Families.
const (
	Inet  Family = "inet"
	Inet6 Family = "inet6"
)

// A Scope says how far a destination is.
type Scope string

// Link is the Scope of what is on the link itself.
const Link Scope = "link"

// route is a change of a route, in the words of ip-route(8).
type route struct {
	// What to do. add: fail if another route has the same destination, metric and table. replace: replace that route,
	// whichever interface it is on. del: delete the interface's routes that match; it is no error if none does. flush:
	// delete all routes of the interface in family and table, except those of the kernel, of router advertisements, to
	// the subnets of its addresses and to their gateways. Default: add.
	Action Action `json:"action"`
	// Destination: a subnet, an address, or default.
	Dst string `json:"dst" want:"subnet|address|default" says:"a subnet, such as 192.0.2.0/24 or 2001:db8::/32, or an address"`
	// Address of the next hop.
	Via string `json:"via" want:"address" says:"the address of a router, such as 192.0.2.1 or 2001:db8::1"`
	// Several next hops, instead of via. The kernel chooses one for each connection.
	NextHops []hop `json:"nexthops"`
	// The next hop is on the link, even if no address of the interface is in its subnet. Default: false.
	OnLink bool `json:"onlink"`
	// link: the destination is on the link, without a next hop. Default: the kernel's choice.
	Scope Scope `json:"scope"`
	// Type of a route without a next hop, whose packets are dropped silently (blackhole) or answered with an error (the
	// other types). Default: an ordinary route.
	Type RouteType `json:"type"`
	// Source address of packets that the container itself sends by the route. Default: the kernel's choice.
	Src string `json:"src" want:"address" says:"an address of the container, such as 192.0.2.1 or 2001:db8::1"`
	// Metric of the route; of several routes to a destination, the kernel uses the one with the lowest. With del: the
	// metric of the route to delete. Default: 0 for IPv4 and 1024 for IPv6, and any with del.
	Metric int `json:"metric" want:"0..4294967295" says:"0 to 4294967295"`
	// Number of the routing table. Default: main, or the table of the interface's VRF.
	Table int `json:"table" want:"0..254|256..4294967295" says:"1 to 4294967295, but not 255, which is the kernel's own"`
	// MTU of the route in bytes, 68 to 65535. Default: that of the interface.
	MTU int `json:"mtu" want:"0|68..65535 bytes"`
	// Maximum segment size that TCP advertises, in bytes, 1 to 65535. Default: derived from the MTU.
	AdvMSS int `json:"advmss" want:"0..65535" says:"1 to 65535 bytes"`
	// Address family: inet or inet6. Only for a default route without a next hop (default: inet) and for flush
	// (default: both).
	Family Family `json:"family"`
}

type hop struct {
	// Address of the next hop. Required.
	Via string `json:"via" want:"address" says:"the address of a router, such as 192.0.2.1 or 2001:db8::1" lacks:"the address of a router, such as 192.0.2.1 or 2001:db8::1"`
	// Weight of the next hop, 1 to 256. A next hop with weight 2 gets twice as many connections as one with weight 1.
	// Default: 1.
	Weight int `json:"weight" want:"0..256" says:"1 to 256"`
	// The next hop is on the link, even if no address of the interface is in its subnet. Default: false.
	OnLink bool `json:"onlink"`
}

// rule is a change of a policy routing rule, in the words of ip-rule(8).
type rule struct {
	// What to do. add: add the rule. del: delete all rules that match; it is no error if none does. flush: delete all
	// rules of the family except the kernel's. Default: add.
	Action RuleAction `json:"action"`
	// Priority of the rule, 1 to 32765. The kernel evaluates rules with a lower number first. The rule for the main
	// table has 32766.
	Priority int `json:"priority" want:"0..32765" says:"1 to 32765"`
	// Source of the packets: a subnet or an address. Default: any.
	From string `json:"from" want:"subnet|address" says:"a subnet, such as 192.0.2.0/24 or 2001:db8::/32, or an address"`
	// Destination of the packets: a subnet or an address. Default: any.
	To string `json:"to" want:"subnet|address" says:"a subnet, such as 192.0.2.0/24 or 2001:db8::/32, or an address"`
	// Interface that the packets arrive on. lo: packets that the container itself sends. Default: any.
	IIF string `json:"iif" want:"ifname"`
	// Interface that the sending socket is bound to. Default: any.
	OIF string `json:"oif" want:"ifname"`
	// Mark of the packets, such as "0x10". A mask limits the bits that are compared: "0x10/0xff". Default: any.
	FwMark string `json:"fwmark" want:"/^(0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]+|[1-9][0-9_]*|0)(/(0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]+|[1-9][0-9_]*|0))?$/" says:"a mark, such as \"0x10\", or a mark and a mask that has its bits, such as \"0x10/0xff\""`
	// Number of the routing table to look up, 1 to 4294967295. 254 is main.
	Table int `json:"table" want:"0..4294967295" says:"1 to 4294967295"`
	// What happens to the packets, instead of a look-up in table: they are dropped silently (blackhole) or answered
	// with an error (the other types).
	Type RouteType `json:"type"`
	// Address family: inet or inet6. Only for a rule without from and to (default: inet) and for flush (default: both).
	Family Family `json:"family"`
}

// neighbour is a change of the interface's neighbours, in the words of ip-neighbour(8).
type neighbour struct {
	// What to do. add: fail if the neighbour has an entry that another program set; an entry that the kernel learnt is
	// replaced. replace: replace any entry. del: delete the entry. flush: delete all entries of the family except those
	// that the kernel made itself. Default: add.
	Action Action `json:"action"`
	// Address of the neighbour.
	Dst string `json:"dst" want:"address" says:"the address of a neighbour, such as 192.0.2.1 or 2001:db8::1"`
	// MAC of the neighbour, required by add and replace. The kernel keeps the entry as it is (state permanent).
	LLAddr string `json:"lladdr" want:"mac"`
	// Address family for flush: inet or inet6. Default: both.
	Family Family `json:"family"`
}

func at(key string, i int) string { return key + "[" + strconv.Itoa(i) + "]" }

func bad(format string, args ...any) error { return spec.Errorf(spec.CodeConfig, format, args...) }

// verb is an action among those that there are for its kind; the first is the default.
func verb[A ~string](key string, a A, among ...A) (routing.Verb, error) {
	if a == "" {
		a = among[0]
	}
	if slices.Contains(among, a) {
		return routing.Verb(a), nil
	}
	return "", oneOf(key+".action", a, among)
}

func oneOf[S ~string](key string, have S, among []S) error {
	var words []string
	for _, s := range among {
		words = append(words, string(s))
	}
	last := len(words) - 1
	want := words[last]
	if last > 0 {
		want = strings.Join(words[:last], ", ") + " or " + want
	}
	if near, ok := spec.Nearest(string(have), words); ok {
		want += "; did you mean " + strconv.Quote(near) + "?"
	}
	return bad("%s: %q: want %s", key, have, want)
}

// families are those that are meant where nothing else says it.
func (f Family) families(key string, both bool) (v4, v6 bool, err error) {
	switch f {
	case "":
		return true, both, nil
	case Inet, Inet6:
		return f == Inet, f == Inet6, nil
	}
	return false, false, oneOf(key+".family", f, []Family{Inet, Inet6})
}

func defaults() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

// prefix is a subnet, or an address alone.
func prefix(key, text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, bad("%s: %q: want a subnet, such as 192.0.2.0/24 or 2001:db8::/32, or an address", key, text)
	}
	if p != p.Masked() {
		return p, bad("%s: %q: is an address with a prefix length; want %v, or the address alone", key, text,
			p.Masked())
	}
	return p, nil
}

func address(key, text, what string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
		return a, bad("%s: %q: want %s, such as 192.0.2.1 or 2001:db8::1", key, text, what)
	}
	return a.Unmap(), nil
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
		return bad("%s.onlink: true: is about via, which is missing; of nexthops each has its own", key)
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
		return bad("%s: has more than one way: want a next hop, \"scope\": \"link\" or a type", key)
	case ways == 0 && do != routing.Del:
		return bad("%s: %v: has no way: want via, nexthops, \"scope\": \"link\" or a type, such as \"blackhole\"", key,
			e.Dst)
	}
	return nil
}

func (r rule) change(key string, all *changes) error {
	do, err := verb(key, r.Action, AddRule, DelRule, FlushRules)
	if err != nil {
		return err
	}
	e := routing.RuleEntry{Priority: r.Priority, IIF: r.IIF, OIF: r.OIF, Table: r.Table, Action: addr.Action(r.Type)}
	if e.V4, e.V6, err = r.Family.families(key, do == routing.Flush); err != nil {
		return err
	}
	if do == routing.Flush {
		if r != (rule{Action: r.Action, Family: r.Family}) {
			return bad("%s: flush takes family; want \"action\": \"del\" for some rules", key)
		}
		all.add(key, do, e)
		return nil
	}
	for _, f := range []struct {
		key, text string
		into      *netip.Prefix
	}{{"from", r.From, &e.From}, {"to", r.To, &e.To}} {
		if f.text == "" {
			continue
		}
		if *f.into, err = prefix(key+"."+f.key, f.text); err != nil {
			return err
		}
		e.V4, e.V6 = f.into.Addr().Is4(), f.into.Addr().Is6()
	}
	if e.From.IsValid() && e.To.IsValid() && e.From.Addr().Is4() != e.To.Addr().Is4() {
		return bad("%s.to: %q: is not of the family of from, %v", key, r.To, e.From)
	}
	if e.Mark, e.Mask, err = mark(key, r.FwMark); err != nil {
		return err
	}
	if err := r.complete(key, do); err != nil {
		return err
	}
	all.add(key, do, e)
	return nil
}

// complete refuses a rule that does nothing, or that would take all.
func (r rule) complete(key string, do routing.Verb) error {
	types := []RouteType{Blackhole, Unreachable, Prohibit}
	switch {
	case r.Type != "" && !slices.Contains(types, r.Type):
		return oneOf(key+".type", r.Type, types)
	case r.Table != 0 && r.Type != "":
		return bad("%s: has table and type; want one of the two", key)
	case do == routing.Del && r == (rule{Action: r.Action, Family: r.Family}):
		return bad("%s: del does not say which: want priority, from, to, iif, oif, fwmark, table or type; "+
			"or \"action\": \"flush\"", key)
	case do == routing.Add && r.Priority == 0:
		return bad("%s.priority: is missing: want 1 to 32765; a rule of a lower one is asked first", key)
	case do == routing.Add && r.Table == 0 && r.Type == "":
		return bad("%s: has no way: want table, or a type, such as \"prohibit\"", key)
	}
	return nil
}

// mark reads "0x10/0xff"; without a mask all bits count.
func mark(key, text string) (value, mask uint32, err error) {
	if text == "" {
		return 0, 0, nil
	}
	v, m, masked := strings.Cut(text, "/")
	if !masked {
		m = "0xffffffff"
	}
	a, aerr := strconv.ParseUint(v, 0, 32)
	b, berr := strconv.ParseUint(m, 0, 32)
	if errors.Join(aerr, berr) != nil || b == 0 || a&^b != 0 {
		return 0, 0, bad("%s.fwmark: %q: want a mark, such as \"0x10\", or a mark and a mask that has its bits, "+
			"such as \"0x10/0xff\"", key, text)
	}
	return uint32(a), uint32(b), nil
}

func (n neighbour) change(key string, all *changes) error {
	do, err := verb(key, n.Action, Add, Replace, Del, Flush)
	if err != nil {
		return err
	}
	e := routing.NeighbourEntry{}
	if e.V4, e.V6, err = n.Family.families(key, true); err != nil {
		return err
	}
	if do == routing.Flush {
		if n != (neighbour{Action: n.Action, Family: n.Family}) {
			return bad("%s: flush takes family; want \"action\": \"del\" for one neighbour", key)
		}
		all.add(key, do, e)
		return nil
	}
	if e.Addr, err = address(key+".dst", n.Dst, "the address of a neighbour"); err != nil {
		return err
	}
	if n.LLAddr != "" || do != routing.Del {
		if err := resource.ValidMAC(key+".lladdr", n.LLAddr); err != nil {
			return err
		}
		e.MAC = n.LLAddr
	}
	e.V4, e.V6 = false, false
	all.add(key, do, e)
	return nil
}

// mostNumber is the greatest table, priority or metric; an int of 32-bit machines has less.
const mostNumber = min(1<<32-1, math.MaxInt)
