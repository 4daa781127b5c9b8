package routing

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
)

// changeState is all that a Change could touch.
func changeState(w *kernel.World) func(testing.TB) string {
	return func(t testing.TB) string {
		t.Helper()
		return sourceState(w)(t) + contract.Container(t, w, "ip neigh show nud permanent") +
			contract.Container(t, w, "ip -6 neigh show nud permanent")
	}
}

func via(addrs ...string) (hops []Hop) {
	for _, a := range addrs {
		hops = append(hops, Hop{Via: netip.MustParseAddr(a)})
	}
	return hops
}

func route(dst string, hops ...Hop) RouteEntry {
	return RouteEntry{Link: "eth0", Dst: netip.MustParsePrefix(dst), Hops: hops}
}

// TestChange holds each kind of Change to the laws: all of it is there, nothing else has changed, and Remove leaves
// what was before, with all attributes.
//
// clause: P12 P15 P17
func TestChange(t *testing.T) {
	weighted := route("203.0.113.0/24", Hop{Via: netip.MustParseAddr("10.1.0.7"), Weight: 3},
		Hop{Via: netip.MustParseAddr("10.1.0.8")})
	src := route("2001:db8:9::/48", via("fd00::9")...)
	src.Src, src.Priority, src.MTU, src.AdvMSS, src.Table = source6.Prefix.Addr(), 77, 1280, 1200, 500
	hole := RouteEntry{Link: "eth0", Dst: netip.MustParsePrefix("10.66.0.0/16"), Type: addr.Blackhole}
	hole6 := RouteEntry{Link: "eth0", Dst: netip.MustParsePrefix("fd66::/16"), Type: addr.Prohibit}
	far := route("192.0.2.128/25", Hop{Via: netip.MustParseAddr("172.31.0.1"), OnLink: true})
	for name, tt := range map[string]struct {
		do       Verb
		of       Subject
		breakers map[string][2]string // command and words
	}{
		"add": {Add, route("203.0.113.0/24", via("10.1.0.9")...), map[string][2]string{
			"gone": {"ip route del 203.0.113.0/24", "is missing"}}},
		"add on the link": {Add, route("203.0.113.0/24"),
			map[string][2]string{"gone": {"ip route del 203.0.113.0/24", "is missing"}}},
		"add onlink": {Add, far, map[string][2]string{
			"no more": {"ip route del 192.0.2.128/25", "is missing"}}},
		"add several": {Add, weighted, map[string][2]string{
			"one less": {"ip route replace 203.0.113.0/24 via 10.1.0.7",
				"next hops is via 10.1.0.7, want via 10.1.0.7 weight 3, via 10.1.0.8 weight 1"},
			"weights": {"ip route replace 203.0.113.0/24 nexthop via 10.1.0.7 nexthop via 10.1.0.8",
				"weight 1, via 10.1.0.8 weight 1, want"}}},
		"add several IPv6": {Add, route("2001:db8:9::/48", via("fd00::7", "fd00::8", "fd00::9")...), map[string][2]string{
			"one less": {"ip -6 route del 2001:db8:9::/48 via fd00::8",
				"next hops is via fd00::7 weight 1, via fd00::9 weight 1, want"}}},
		"add with all": {Add, src, map[string][2]string{
			"mtu": {"ip -6 route change 2001:db8:9::/48 via fd00::9 table 500 metric 77 src fd00::2 mtu 1400 advmss 1200",
				"mtu is 1400, want 1280"}}},
		"blackhole":     {Add, hole, map[string][2]string{"gone": {"ip route del blackhole 10.66.0.0/16", "is missing"}}},
		"prohibit IPv6": {Add, hole6, map[string][2]string{"gone": {"ip -6 route del prohibit fd66::/16", "is missing"}}},
		"replace default": {Replace, route("0.0.0.0/0", via("10.1.0.9")...),
			map[string][2]string{"back": {"ip route replace default via 10.1.0.1", "want via 10.1.0.9"}}},
		"replace default6":  {Replace, route("::/0", via("fd00::8", "fd00::9")...), nil},
		"replace with two":  {Replace, route("0.0.0.0/0", via("10.1.0.8", "10.1.0.9")...), nil},
		"replace by a hole": {Replace, RouteEntry{Link: "eth0", Dst: contract.Default4, Type: addr.Unreachable}, nil},
		"del": {Del, RouteEntry{Link: "eth0", Dst: netip.MustParsePrefix("192.0.2.0/24")}, map[string][2]string{
			"back": {"ip route add 192.0.2.0/24 via 10.1.0.7 metric 5 mtu 1300",
				"route 192.0.2.0/24 via 10.1.0.7 dev cont/eth0 metric 5 table 254 is there"}}},
		"del by what it is": {Del, RouteEntry{Link: "eth0", Dst: contract.Default6, Hops: via("fd00::1"), Priority: 1024},
			nil},
		"del the subnet": {Del, RouteEntry{Link: "eth0", Dst: netip.MustParsePrefix("fd00::/64")}, nil},
		"flush": {Flush, RouteEntry{Link: "eth0", V4: true, V6: true}, map[string][2]string{
			"back": {"ip route add default via 10.1.0.1", "route default via 10.1.0.1 dev cont/eth0 table 254 is there"}}},
		"flush IPv6": {Flush, RouteEntry{Link: "eth0", V6: true}, nil},
		"rule": {Add, RuleEntry{V4: true, Priority: 1000, From: netip.MustParsePrefix("10.1.0.0/16"),
			To: netip.MustParsePrefix("192.0.2.1/32"), IIF: "lo", Table: 500}, map[string][2]string{
			"gone": {"ip rule del priority 1000", "is missing"}}},
		"IPv6 rule": {Add, RuleEntry{V6: true, Priority: 1001, OIF: "eth0", Mark: 0x10, Mask: 0xff, Action: addr.Blackhole},
			map[string][2]string{
				"another": {"ip -6 rule del priority 1001", "is missing"}}},
		"del rule": {Del, RuleEntry{V4: true, Table: 99},
			map[string][2]string{"back": {"ip rule add priority 800 from 10.9.0.0/16 tos 0x10 lookup 99",
				"rule priority 800 from 10.9.0.0/16 lookup 99 is there"}}},
		"flush rules": {Flush, RuleEntry{V4: true, V6: true}, nil},
		"neighbour": {Add, NeighbourEntry{Addr: netip.MustParseAddr("10.1.0.9"), MAC: "02:00:00:00:00:09"},
			map[string][2]string{
				"another": {"ip neigh replace 10.1.0.9 lladdr 02:00:00:00:00:08 dev eth0 nud permanent",
					"lladdr is 02:00:00:00:00:08, want 02:00:00:00:00:09"},
				"gone": {"ip neigh del 10.1.0.9 dev eth0", "is missing"}}},
		"replace neighbour": {Replace, NeighbourEntry{Addr: netip.MustParseAddr("fd00::77"), MAC: "02:00:00:00:00:09"}, nil},
		"del neighbour":     {Del, NeighbourEntry{Addr: netip.MustParseAddr("fd00::77")}, nil},
		"flush neighbours":  {Flush, NeighbourEntry{V4: true, V6: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := changeable(t)
			var bs []contract.Breakage
			for what, b := range tt.breakers {
				bs = append(bs, contract.Break(what, contract.In(w, b[0]), b[1]))
			}
			contract.Terms{State: changeState(w)}.Test(t, w, Change{Owner: contract.Owner, Do: tt.do, Of: tt.of, Key: "x[0]"},
				bs...)
		})
	}
}

// changeable is routed, and a container that has rules and neighbours.
func changeable(t *testing.T) *kernel.World {
	w := routed(t)
	for _, c := range []string{
		"ip rule add priority 800 from 10.9.0.0/16 tos 0x10 lookup 99",
		"ip -6 rule add priority 801 to fd09::/16 lookup 99",
		"ip neigh add 10.1.0.77 lladdr 02:00:00:00:00:77 dev eth0 nud permanent",
		"ip -6 neigh add fd00::77 lladdr 02:00:00:00:00:77 dev eth0 nud permanent",
		"ip route add 198.18.0.0/15 nexthop via 10.1.0.3 dev eth0 weight 4 nexthop via 10.1.0.4 dev eth0 onlink",
		"ip -6 route add 2001:db8:18::/48 metric 9 nexthop via fd00::3 dev eth0 weight 4 nexthop via fd00::4 dev eth0",
		"ip route add 10.5.0.0/16 via 10.1.0.5 dev eth0 proto 99 metric 7 src 10.1.0.2 mtu lock 1300 rto_min 5ms initcwnd 20",
	} {
		contract.Container(t, w, "%s", c)
	}
	return w
}

// Changes build on one another, in their order, and are taken back in the other.
func TestChanges(t *testing.T) {
	w := changeable(t)
	before := changeState(w)(t)
	p := plan.Plan{
		Change{Owner: contract.Owner, Do: Flush, Of: RouteEntry{Link: "eth0", V4: true, V6: true}},
		Change{Owner: contract.Owner, Do: Add, Of: route("172.20.0.0/16")},
		Change{Owner: contract.Owner, Do: Add, Of: route("0.0.0.0/0", via("172.20.0.1")...)},
		Change{Owner: contract.Owner, Do: Replace, Of: route("0.0.0.0/0", via("10.1.0.9")...)},
		Change{Owner: contract.Owner, Do: Del, Of: RouteEntry{Link: "eth0", Dst: netip.MustParsePrefix("172.20.0.0/16")}},
		Change{Owner: contract.Owner, Do: Add, Of: route("172.20.0.0/16", via("10.1.0.8")...)},
		Change{Owner: contract.Owner, Do: Flush, Of: RuleEntry{V4: true, V6: true}},
		Change{Owner: contract.Owner, Do: Add, Of: RuleEntry{V4: true, Priority: 5, Table: 77}},
	}
	tx := engine.Begin(w)
	if err := tx.Apply(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := engine.Verify(t.Context(), w, p[3:]); err != nil {
		t.Error(err)
	}
	shows(t, w, "-4 route show table main", "default via 10.1.0.9 dev eth0", "10.1.0.0/16 dev eth0 proto kernel",
		"172.20.0.0/16 via 10.1.0.8 dev eth0")
	shows(t, w, "-4 rule show", "0: from all lookup local", "5: from all lookup 77 proto 250",
		"32766: from all lookup main", "32767: from all lookup default")
	after := changeState(w)(t)
	for _, r := range p[3:] { // again, as a second ADD would
		if changed, err := r.Ensure(t.Context(), w); err != nil || changed {
			t.Errorf("%v: changed %v, %v", r, changed, err)
		}
	}
	if got := changeState(w)(t); got != after {
		t.Error(contract.Difference(after, got))
	}
	if err := ChangeKind().Remove(t.Context(), w, plan.TagOf(contract.Owner)); err != nil {
		t.Fatal(err)
	}
	if got := changeState(w)(t); got != before {
		t.Errorf("remove left%s", contract.Difference(before, got))
	}
}

// What cannot be made is an error that names the key, and changes nothing; the same is there already is none.
func TestChangeRefused(t *testing.T) {
	w := changeable(t)
	before := changeState(w)(t)
	for _, tt := range []struct {
		of  Subject
		say string
	}{
		{route("0.0.0.0/0", via("10.1.0.9")...), `routes[7]: default via 10.1.0.9: there is route default via 10.1.0.1 dev cont/eth0 table 254 already; "action": "replace" takes its place`},
		{route("203.0.113.0/24", via("172.31.0.1")...), `routes[7]: the kernel does not take 203.0.113.0/24 via 172.31.0.1: network is unreachable`},
		{NeighbourEntry{Addr: netip.MustParseAddr("10.1.0.77"), MAC: "02:00:00:00:00:01"}, `routes[7]: 10.1.0.77 lladdr 02:00:00:00:00:01: there is neighbour 10.1.0.77 lladdr 02:00:00:00:00:77 already`},
	} {
		_, err := Change{Owner: contract.Owner, Do: Add, Of: tt.of, Key: "routes[7]"}.Ensure(t.Context(), w)
		var e *spec.Error
		if !errors.As(err, &e) || e.Code != spec.CodeConfig ||
			!strings.Contains(strings.ToLower(err.Error()), strings.ToLower(tt.say)) {
			t.Errorf("%v: want %s", err, tt.say)
		}
	}
	for _, of := range []Subject{route("0.0.0.0/0", via("10.1.0.1")...),
		route("198.18.0.0/15", Hop{Via: netip.MustParseAddr("10.1.0.3"), Weight: 4},
			Hop{Via: netip.MustParseAddr("10.1.0.4"), OnLink: true})} {
		c := Change{Owner: contract.Owner, Do: Add, Of: of, Key: "routes[0]"}
		if changed, err := c.Ensure(t.Context(), w); err != nil || changed {
			t.Errorf("%v: changed %v, %v", c, changed, err)
		}
		if err := c.Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
	}
	if got := changeState(w)(t); got != before {
		t.Errorf("a refused change left%s", contract.Difference(before, got))
	}
}

// A default route of another interface is replaced, and put back; a route whose place somebody else has taken since is
// not.
func TestChangeOfAnother(t *testing.T) {
	w := changeable(t)
	contract.Container(t, w, "ip route del default")
	contract.Container(t, w, "ip link add eth1 up type veth peer name far1")
	contract.Container(t, w, "ip link set far1 up")
	contract.Container(t, w, "ip addr add 10.7.0.2/24 dev eth1")
	contract.Container(t, w, "ip route add default via 10.7.0.1 dev eth1")
	before := changeState(w)(t)
	c := Change{Owner: contract.Owner, Do: Replace, Of: route("0.0.0.0/0", via("10.1.0.1")...), Key: "routes[0]"}
	contract.Must(t, w, c)
	shows(t, w, "-4 route show default", "default via 10.1.0.1 dev eth0")
	if err := c.Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if got := changeState(w)(t); got != before {
		t.Errorf("remove left%s", contract.Difference(before, got))
	}
	contract.Must(t, w, c)
	contract.Container(t, w, "ip link del eth1")
	if err := c.Remove(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	shows(t, w, "-4 route show default")
	contract.Must(t, w, c)
	// In another container of that path nothing is touched.
	other := &kernel.World{Host: w.Host, Container: contract.OpenNS(t), Store: w.Store}
	contract.Container(t, other, "ip link add eth0 up type veth peer name far0")
	contract.Container(t, other, "ip link set far0 up")
	contract.Container(t, other, "ip route add default dev eth0")
	if err := ChangeKind().Remove(context.Background(), other, plan.TagOf(contract.Owner)); err != nil {
		t.Fatal(err)
	}
	shows(t, other, "-4 route show default", "default dev eth0")
	if names, err := os.ReadDir(w.Store.Dir); err != nil || strings.Contains(names[0].Name(), changeRecord) {
		t.Errorf("%v, %v", names, err)
	}
}
