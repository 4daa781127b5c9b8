package route

import (
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/spelling"
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
	if near, ok := spelling.Nearest(string(have), words); ok {
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

// mostNumber is the greatest table, priority or metric; an int of 32-bit machines has less.
const mostNumber = min(1<<32-1, math.MaxInt)
