package routing

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/link/linktest"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

var (
	source4 = Source{Prefix: netip.MustParsePrefix("10.1.0.2/16"), Via: netip.MustParseAddr("10.1.0.1")}
	source6 = Source{Prefix: netip.MustParsePrefix("fd00::2/64"), Via: netip.MustParseAddr("fd00::1")}
)

// routed is a world with a container that has default routes and one more by a router of its own.
func routed(t *testing.T) *kernel.World {
	w := contract.NewWorld(t)
	contract.Must(t, w, attached()...)
	contract.Must(t, w, addr.Route{Link: "eth0", Dst: contract.Default4, Via: source4.Via},
		addr.Route{Link: "eth0", Dst: contract.Default6, Via: source6.Via},
		addr.Route{Link: "eth0", Dst: netip.MustParsePrefix("192.0.2.0/24"), Via: netip.MustParseAddr("10.1.0.7"), MTU: 1300,
			Priority: 5},
		addr.Route{Link: "eth0", Dst: netip.MustParsePrefix("198.51.100.0/24")})
	return w
}

// sourceState is all that a SourceRouting could touch.
func sourceState(w *kernel.World) func(testing.TB) string {
	return func(t testing.TB) string {
		t.Helper()
		return contract.State(t, w) + contract.RuleState(w)(t) + "remembered: " + strings.Join(remembered(t, w), " ")
	}
}

// remembered are the records of attachments; a bridge's gateway is anybody's.
func remembered(t testing.TB, w *kernel.World) (names []string) {
	t.Helper()
	files, err := os.ReadDir(w.Store.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), addr.GatewayRecord+".") {
			names = append(names, f.Name())
		}
	}
	return names
}

// shows fails unless the output of ip(8) is these lines; what ip adds at their ends does not count.
func shows(t *testing.T, w *kernel.World, args string, want ...string) {
	t.Helper()
	out := strings.TrimSpace(contract.Container(t, w, "ip %s", args))
	var got []string
	for _, l := range strings.Split(out, "\n") {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "fe80::") {
			got = append(got, strings.Join(strings.Fields(l), " "))
		}
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("ip %s shows\n%s\nwant\n%s", args, strings.Join(got, "\n"), strings.Join(want, "\n"))
			return
		}
	}
}

// clause: P12 P15 P17
func TestSourceRouting(t *testing.T) {
	w := routed(t)
	s := SourceRouting{Owner: contract.Owner, Sources: []Source{source4, source6}}
	contract.Terms{State: sourceState(w)}.Test(t, w, s,
		contract.Break("rule", contract.In(w, "ip rule del from 10.1.0.2"),
			"priority 32765 from 10.1.0.2 lookup 100: is missing"),
		contract.Break("IPv6 rule", contract.In(w, "ip -6 rule del from fd00::2"), "from fd00::2 lookup 101: is missing"),
		contract.Break("default route", contract.In(w, "ip route del default table 100"),
			"route default via 10.1.0.1 dev cont/eth0 table 100: is missing"),
		contract.Break("IPv6 default route", contract.In(w, "ip -6 route del default table 101"),
			"route -6 default via fd00::1 dev cont/eth0 metric 1024 table 101: is missing"),
		contract.Break("subnet", contract.In(w, "ip route del 10.1.0.0/16 table 100"),
			"route 10.1.0.0/16 dev cont/eth0 src 10.1.0.2 table 100: is missing"),
		contract.Break("subnet's hint", contract.In(w, "ip route change 10.1.0.0/16 dev eth0 table 100"),
			"src is invalid IP, want 10.1.0.2"),
		contract.Break("mtu", contract.In(w, "ip route change 192.0.2.0/24 via 10.1.0.7 metric 5 table 100"),
			"mtu is 0, want 1300"),
		contract.Break("back in main", contract.In(w, "ip route add default via 10.1.0.1 dev eth0 onlink"),
			"route default via 10.1.0.1 dev cont/eth0 table 254: is back in the main table"),
		contract.Break("subnet back in main", contract.In(w,
			"ip route add 10.1.0.0/16 dev eth0 proto kernel scope link src 10.1.0.2"), "route 10.1.0.0/16 dev cont/eth0 src 10.1.0.2 table 254: is back in the main table"),
		contract.Break("IPv6 subnet back in main",
			contract.In(w, "ip -6 route add fd00::/64 dev eth0 metric 256 proto kernel"), "route fd00::/64 dev cont/eth0 metric 256 table 254: is back in the main table"),
		contract.Break("flushed", contract.In(w, "ip -6 route flush table 101"),
			"route fd00::/64 dev cont/eth0 src fd00::2 table 101: is missing"),
	)
	contract.Must(t, w, s)
	shows(t, w, "-4 rule show table 100", "32765: from 10.1.0.2 lookup 100 proto 250")
	shows(t, w, "-6 rule show table 101", "32765: from fd00::2 lookup 101 proto 250")
	shows(t, w, "-4 route show table 100", "default via 10.1.0.1 dev eth0 proto 250",
		"10.1.0.0/16 dev eth0 proto 250 scope link src 10.1.0.2",
		"192.0.2.0/24 via 10.1.0.7 dev eth0 proto 250 metric 5 mtu 1300", "198.51.100.0/24 dev eth0 proto 250 scope link")
	shows(t, w, "-6 route show table 101", "fd00::/64 dev eth0 proto 250 src fd00::2 metric",
		"default via fd00::1 dev eth0 proto 250 metric 1024")
	shows(t, w, "-4 route show table main")
	shows(t, w, "-6 route show table main")
	if out := contract.Container(t, w, "ip -6 route show table main"); !strings.Contains(out, "fe80::/64") {
		t.Errorf("no route to link-local neighbours:\n%s", out)
	}
}

func TestSourceRoutingByOtherRouters(t *testing.T) {
	w := routed(t)
	before := sourceState(w)(t)
	r4, r6 := netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("fe80::9")
	s := SourceRouting{Owner: contract.Owner, Hints: true,
		Sources: []Source{{source4.Prefix, r4, true}, {source6.Prefix, r6, true}}}
	contract.Terms{State: sourceState(w)}.Test(t, w, s,
		contract.Break("the other router", contract.In(w, "ip route replace default via 10.1.0.1 table 100"),
			"route default via 10.1.0.9 dev cont/eth0 table 100: is missing"),
		contract.Break("hint", contract.In(w, "ip -6 route del fd00::/64 metric 255"),
			"src fd00::2 metric 255 table 254: is missing"),
	)
	contract.Must(t, w, s)
	shows(t, w, "-4 route show default table 100", "default via 10.1.0.9 dev eth0")
	shows(t, w, "-6 route show default table 101", "default via fe80::9 dev eth0")
	shows(t, w, "-4 route show table main", "10.1.0.0/16 dev eth0 proto kernel scope link src 10.1.0.2",
		"198.51.100.0/24 dev eth0 scope link")
	shows(t, w, "-6 route show table main", "fd00::/64 dev eth0 proto 250 src fd00::2 metric 255",
		"fd00::/64 dev eth0 proto kernel metric 256")
	// The main plugin's route is where packets from its address look for it (P16).
	for _, r := range []addr.Route{{Link: "eth0", Dst: contract.Default4, Via: source4.Via},
		{Link: "eth0", Dst: contract.Default6, Via: source6.Via}} {
		if err := r.Verify(t.Context(), w); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
	if err := s.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if after := sourceState(w)(t); after != before {
		t.Errorf("left behind:%s", contract.Difference(before, after))
	}
}

// Several additions to a container at once choose different tables.
//
// clause: P20
func TestSourceRoutingAtOnce(t *testing.T) {
	w := contract.NewWorld(t)
	const n = 6
	var wg sync.WaitGroup
	all := make([]SourceRouting, n)
	for i := range all {
		o := contract.Owner
		o.IfName = "eth" + strconv.Itoa(i)
		contract.Must(t, w, linktest.Veth(o, ""), sysctl.EnableIPv6{Link: o.IfName, NoDAD: true})
		all[i].Owner = o
		for _, p := range []string{"10." + strconv.Itoa(i) + ".0.2/16", "fd00:" + strconv.Itoa(i) + "::2/64"} {
			src := Source{Prefix: netip.MustParsePrefix(p)}
			contract.Must(t, w, addr.Addr{Link: o.IfName, Prefix: src.Prefix, NoDAD: src.Prefix.Addr().Is6()})
			all[i].Sources = append(all[i].Sources, src)
		}
	}
	before := sourceState(w)(t)
	each := func(do func(SourceRouting, context.Context, *kernel.World) error) {
		for _, s := range all {
			wg.Go(func() {
				h, err1 := kernel.Open(w.Host.Path)
				c, err2 := kernel.Open(w.Container.Path)
				if err := errors.Join(err1, err2); err != nil {
					t.Error(err)
					return
				}
				own := &kernel.World{Host: h, Container: c, Store: w.Store}
				defer own.Close()
				if err := do(s, t.Context(), own); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	each(func(s SourceRouting, ctx context.Context, w *kernel.World) error {
		_, err := s.Ensure(ctx, w)
		return err
	})
	seen := map[int]bool{}
	for _, family := range resource.Families() {
		rules, err := rtnl.Rules(w.Container, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			if r.From.IsValid() && seen[r.Table] {
				t.Errorf("table %d is in use twice", r.Table)
			}
			seen[r.Table] = true
		}
	}
	if len(seen) != 2*n+3 { // and local, main, default
		t.Errorf("%d tables for %d addresses", len(seen), 2*n)
	}
	each(SourceRouting.Verify)
	each(SourceRouting.Remove)
	if after := sourceState(w)(t); after != before {
		t.Errorf("left behind:%s", contract.Difference(before, after))
	}
}

// Two subnets on one link: each has its own router's routes, and what has neither is everybody's.
func TestSourceRoutingOfTwoSubnets(t *testing.T) {
	w := routed(t)
	contract.Container(t, w, "ip addr add 10.2.0.2/16 dev eth0")
	contract.Container(t, w, "ip addr add 10.3.0.2/32 dev eth0")
	contract.Container(t, w, "ip route add 203.0.113.0/24 via 10.2.0.7")
	s := SourceRouting{Owner: contract.Owner, Sources: []Source{source4, {Prefix: netip.MustParsePrefix("10.2.0.2/16")},
		{Prefix: netip.MustParsePrefix("10.3.0.2/32"), Via: netip.MustParseAddr("169.254.1.1"), Always: true}}}
	contract.Terms{State: sourceState(w)}.Test(t, w, s)
	contract.Must(t, w, s)
	shows(t, w, "route show table 100", "default via 10.1.0.1", "10.1.0.0/16 dev eth0", "192.0.2.0/24 via 10.1.0.7",
		"198.51.100.0/24 dev eth0")
	shows(t, w, "route show table 101", "10.2.0.0/16 dev eth0 proto 250 scope link src 10.2.0.2",
		"198.51.100.0/24 dev eth0", "203.0.113.0/24 via 10.2.0.7")
	shows(t, w, "route show table 102", "default via 169.254.1.1 dev eth0 proto 250 onlink", "198.51.100.0/24 dev eth0")
}

// An addition that fails has changed nothing.
//
// clause: P11
func TestSourceRoutingFails(t *testing.T) {
	w := routed(t)
	before := sourceState(w)(t)
	for _, c := range []struct {
		what, say string
		s         SourceRouting
	}{
		{"an address that the link has not", "does not have the address 10.9.0.2/16",
			SourceRouting{Owner: contract.Owner, Sources: []Source{source4, {Prefix: netip.MustParsePrefix("10.9.0.2/16")}}}},
		{"a router that there is no way to", "",
			SourceRouting{Owner: contract.Owner, Sources: []Source{source4,
				{source6.Prefix, netip.MustParseAddr("ff02::1"), true}}}},
	} {
		changed, err := c.s.Ensure(t.Context(), w)
		if changed || err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: changed %v, error %v", c.what, changed, err)
		}
		if after := sourceState(w)(t); after != before {
			t.Errorf("%s: left behind:%s", c.what, contract.Difference(before, after))
		}
	}
	o := contract.Owner
	o.IfName = "none"
	if _, err := (SourceRouting{Owner: o, Sources: []Source{source4}}).Ensure(t.Context(), w); !errors.Is(err,
		rtnl.ErrNoLink) {
		t.Error(err)
	}
	// A memory that cannot be written to: nothing may be changed that could not be undone.
	if err := os.WriteFile(w.Store.Dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	full := *w
	full.Store.Dir += "/file"
	before = sourceState(w)(t)
	if _, err := (SourceRouting{Owner: contract.Owner, Sources: []Source{source4}}).Ensure(t.Context(),
		&full); !errors.Is(err, unix.ENOTDIR) {
		t.Error(err)
	}
	if after := sourceState(w)(t); after != before {
		t.Errorf("left behind:%s", contract.Difference(before, after))
	}
}

// What an addition remembered of a namespace that is gone is no reason to touch another one of the same path.
//
// clause: P12
func TestSourceRoutingOfAnotherNamespace(t *testing.T) {
	w, other := routed(t), routed(t)
	s := SourceRouting{Owner: contract.Owner, Sources: []Source{source4, source6}}
	contract.Must(t, w, s)
	other.Store = w.Store
	contract.Container(t, other, "ip rule add from 10.1.0.2 lookup 100")
	before := contract.State(t, other) + contract.RuleState(other)(t)
	if err := s.Remove(t.Context(), other); err != nil {
		t.Error(err)
	}
	if after := contract.State(t, other) + contract.RuleState(other)(t); after != before {
		t.Errorf("changed:%s", contract.Difference(before, after))
	}
	if left := remembered(t, w); len(left) != 0 {
		t.Errorf("remembered still: %v", left)
	}
	// And a namespace that vanished takes all with it.
	contract.Must(t, w, s)
	if err := s.Remove(t.Context(), &kernel.World{Host: w.Host, Store: w.Store}); err != nil {
		t.Error(err)
	}
	if left := remembered(t, w); len(left) != 0 {
		t.Errorf("remembered still: %v", left)
	}
}

// Where our memory was lost, what is ours goes by its protocol number. Rules that the reference made go too, but not
// those that somebody made by hand, and not other addresses'.
//
// clause: P12
func TestSourceRoutingForgotten(t *testing.T) {
	w := routed(t)
	s := SourceRouting{Owner: contract.Owner, Sources: []Source{source4, source6}}
	contract.Must(t, w, s)
	if err := w.Store.Delete(sourceRecord, contract.Owner); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), w); err != nil {
		t.Errorf("nothing is missing: %v", err)
	}
	contract.Container(t, w, "ip route del default table 100")
	if err := s.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "route default via 10.1.0.1") {
		t.Errorf("the default route is missing: %v", err)
	}
	if err := (SourceRouting{Owner: contract.Owner}).Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	shows(t, w, "route show table 100")
	shows(t, w, "-6 route show table 101")
	shows(t, w, "rule", "0: from all lookup local", "32766:", "32767:")
	if err := s.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "rule from fd00::2: is missing") {
		t.Errorf("verify of nothing: %v", err)
	}

	// As the reference makes them, which sets no protocol.
	for _, line := range []string{"rule add from 10.1.0.2 lookup 100 priority 32765 protocol 0",
		"-6 rule add from fd00::2 lookup 101 priority 32765 protocol 0",
		"rule add from 10.1.0.2 lookup 99 priority 32764 protocol 0", "rule add from 10.1.0.2 lookup 100 priority 32763 protocol static",
		"rule add from 10.1.0.3 lookup 102 priority 32762 protocol 0"} {
		contract.Container(t, w, "ip %s", line)
	}
	others := []string{"0: from all lookup local", "32762: from 10.1.0.3 lookup 102",
		"32763: from 10.1.0.2 lookup 100 proto static", "32764: from 10.1.0.2 lookup 99"}
	// no previous result, no addresses
	if err := (SourceRouting{Owner: contract.Owner}).Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	shows(t, w, "rule", append(others, "32765: from 10.1.0.2 lookup 100", "32766:", "32767:")...)
	if err := s.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	shows(t, w, "rule", append(others, "32766:", "32767:")...)
	shows(t, w, "-6 rule", "0: from all lookup local", "32766:")
	s.Table = 99
	if err := s.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	shows(t, w, "rule", append(others[:3:3], "32766:", "32767:")...)
}

// A default route whose place another link has taken meanwhile is not put back in front of that one's.
func TestSourceRoutingGivesBack(t *testing.T) {
	w := routed(t)
	o := contract.Owner
	o.IfName = "eth1"
	contract.Must(t, w, linktest.Veth(o, ""), sysctl.EnableIPv6{Link: "eth1", NoDAD: true},
		addr.Addr{Link: "eth1", Prefix: netip.MustParsePrefix("10.5.0.2/16")})
	// Two routers of one destination, as a multipath route of IPv6 is.
	contract.Container(t, w, "ip -6 route append default via fd00::7 dev eth0")
	v6 := contract.Container(t, w, "ip -6 route show default")
	s := SourceRouting{Owner: contract.Owner, Sources: []Source{source4, source6}}
	contract.Must(t, w, s)
	contract.Container(t, w, "ip route add default via 10.5.0.1 dev eth1")
	if err := s.Verify(t.Context(), w); err != nil {
		t.Errorf("the other link's default route: %v", err)
	}
	if err := s.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	shows(t, w, "route show default", "default via 10.5.0.1 dev eth1")
	if after := contract.Container(t, w, "ip -6 route show default"); after != v6 {
		t.Errorf("before\n%safter\n%s", v6, after)
	}
	// The link is down, or gone: nothing is left to be put back.
	contract.Must(t, w, s)
	contract.Container(t, w, "ip link set eth0 down")
	if err := s.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	contract.Container(t, w, "ip link set eth0 up")
	contract.Must(t, w, s)
	contract.Container(t, w, "ip link del eth0")
	if err := s.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	shows(t, w, "rule", "0: from all lookup local", "32766:", "32767:")
	shows(t, w, "-6 rule", "0: from all lookup local", "32766:")
}

// A sweep finds what is in a container that lives on, and leaves a namespace that only has its path.
//
// clause: P22
func TestSweepSourceRouting(t *testing.T) {
	w := routed(t)
	contract.Container(t, w, "ip link set eth0 group 0") // so that the sweep of links leaves it
	contract.Host(t, w, "ip link set %s group 0", identity.LinkName("veth", contract.Owner))
	other := contract.Owner
	other.ContainerID = "c2"
	before := sourceState(w)(t)
	s := SourceRouting{Owner: contract.Owner, Hints: true, Sources: []Source{source4, source6}}
	contract.Must(t, w, s)
	made := sourceState(w)(t)
	sweep := func(valid ...spec.Owner) {
		t.Helper()
		if err := sweep(t.Context(), &kernel.World{Host: w.Host, Store: w.Store}, contract.Owner.Network, valid); err != nil {
			t.Error(err)
		}
	}
	sweep(contract.Owner)
	if after := sourceState(w)(t); after != made {
		t.Errorf("a valid attachment's:%s", contract.Difference(made, after))
	}
	sweep(other)
	if after := sourceState(w)(t); after != before {
		t.Errorf("left behind:%s", contract.Difference(before, after))
	}

	contract.Must(t, w, s)
	var rec sources
	if ok, err := w.Store.Get(sourceRecord, contract.Owner, &rec); !ok || err != nil {
		t.Fatal(ok, err)
	}
	rec.NS = kernel.Identity{Ino: 1}
	if err := w.Store.Put(sourceRecord, contract.Owner, rec); err != nil {
		t.Fatal(err)
	}
	made = contract.State(t, w) + contract.RuleState(w)(t)
	sweep(other)
	if after := contract.State(t, w) + contract.RuleState(w)(t); after != made {
		t.Errorf("another namespace's:%s", contract.Difference(made, after))
	}
}

// A link without carrier, as a tap is before its virtual machine runs, has IPv6 addresses that the kernel is not
// sure of. They are not waited for.
func TestSourceRoutingWithoutCarrier(t *testing.T) {
	w := contract.NewWorld(t)
	for _, line := range []string{"link add eth0 type veth peer name other", "link set eth0 up",
		"addr add 10.1.0.2/16 dev eth0", "addr add fd00::2/64 dev eth0"} {
		contract.Container(t, w, "ip %s", line)
	}
	s := SourceRouting{Owner: contract.Owner, Hints: true, Sources: []Source{source4, source6}}
	contract.Terms{State: sourceState(w)}.Test(t, w, s,
		contract.Break("default route", contract.In(w, "ip -6 route del default table 101"), "table 101: is missing"))
	contract.Must(t, w, s)
	shows(t, w, "-6 route show table 101", "fd00::/64 dev eth0", "default via fd00::1 dev eth0")
}
