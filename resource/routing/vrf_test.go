package routing

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
)

// needVRF makes a world whose container has eth0 and eth1, each with addresses of both families, the same ones, and
// routes that only eth0 has in the main table.
func needVRF(t *testing.T) *kernel.World {
	t.Helper()
	nstest.Need(t, "vrf", "table", "7")
	w := contract.NewWorld(t)
	for _, n := range []string{"0", "1"} {
		contract.Host(t, w, "ip link add eth%s netns %s type veth peer name far%[1]s", n, filepath.Base(w.Container.Path))
		contract.Host(t, w, "ip link set far%s up", n)
		contract.Container(t, w, "sysctl -qw net.ipv6.conf.eth%s.keep_addr_on_down=1", n) // ip(8) takes it out of VRFs below
		contract.Container(t, w, "ip link set eth%s up", n)
	}
	for _, a := range []string{"10.1.0.2/24", "fd00:1::2/64 nodad", "fd00:2::2/64 nodad noprefixroute"} {
		contract.Container(t, w, "ip addr add %s dev eth0", a)
	}
	for _, r := range []string{
		"default via 10.1.0.1", "10.2.0.0/16 dev eth0 scope link", "10.3.0.0/16 via 10.1.0.1 metric 7 mtu 1300", "10.4.0.0/16 via 10.1.0.1 table 500",
		"10.5.0.0/16 dev eth0 scope link src 10.1.0.2", "172.16.0.0/12 via 192.0.2.1 dev eth0 onlink",
	} {
		contract.Container(t, w, "ip route add %s", r)
	}
	for _, r := range []string{"default via fd00:1::1", "fd00:2::/64 dev eth0 src fd00:2::2",
		"fd00:4::/64 via fd00:1::1 table 500"} {
		contract.Container(t, w, "ip -6 route add %s", r)
	}
	return w
}

func member0(name string, table int) VRF { return VRF{Owner: contract.Owner, Name: name, Table: table} }

// in1 is the other link's.
func in1(name string) VRF {
	return VRF{Owner: spec.Owner{Network: "lan", ContainerID: "c1", IfName: "eth1"}, Name: name}
}

func TestVRF(t *testing.T) {
	for _, table := range []int{0, 4294967295} {
		t.Run(fmt.Sprint("table ", table), func(t *testing.T) {
			w := needVRF(t)
			v := member0("blue", table)
			want := table
			if table == 0 {
				want = 1
			}
			again := func(t *testing.T) {
				contract.Container(t, w, "ip link set eth0 nomaster up")
				if _, err := rtnl.IndexOf(w.Container, "blue"); err == nil {
					contract.Container(t, w, "ip link del blue")
				}
				if err := v.Remove(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				contract.Must(t, w, v)
			}
			breakers := []contract.Breakage{
				contract.Break("no member", contract.In(w, "ip link set eth0 nomaster"), "master is none, want blue"),
				contract.Break("another VRF's", contract.In(w, "ip link add red type vrf table 9", "ip link set eth0 master red"),
					"master is red, want blue"),
				contract.Break("gone", contract.In(w, "ip link del blue", "ip link del red"), "link blue: link does not exist"),
				contract.Break("down", contract.In(w, "ip link set blue down"), "state of blue is down, want up"),
				contract.Break("another table", contract.In(w, "ip link del blue", "ip link add blue type vrf table 77",
					"ip link set blue up", "ip link set eth0 master blue"), fmt.Sprintf("table of blue is 77, want %d", want)),
				contract.Break("another kind", contract.In(w, "ip link del blue", "ip link add blue type bridge"),
					"type of blue is bridge, want vrf"),
				contract.Break("default route", contract.In(w, fmt.Sprintf("ip route del default table %d", want)),
					"route default via 10.1.0.1 dev cont/eth0"),
				contract.Break("IPv6 default route", contract.In(w, fmt.Sprintf("ip -6 route del default table %d", want)),
					"route -6 default via fd00:1::1 dev cont/eth0"),
				contract.Break("a route's MTU", contract.In(w,
					fmt.Sprintf("ip route change 10.3.0.0/16 via 10.1.0.1 metric 7 mtu 1200 table %d",
						want)), "mtu is 1200, want 1300"),
				contract.Break("a rule's route", contract.In(w, "ip route flush table 500"),
					"route 10.4.0.0/16 via 10.1.0.1 dev cont/eth0 table 500: is missing"),
			}
			if table != 0 {
				breakers = nil
			}
			contract.Terms{Repair: again}.Test(t, w, v, breakers...)
		})
	}
}

// TestVRFKeeps: addresses of both families and routes are there after joining, and usable at once.
func TestVRFKeeps(t *testing.T) {
	w := needVRF(t)
	contract.Container(t, w, "sysctl -qw net.ipv6.conf.eth0.keep_addr_on_down=0 net.ipv6.conf.eth0.accept_dad=1")
	v := member0("blue", 0)
	contract.Must(t, w, v)
	addrs := contract.Container(t, w, "ip -o addr show dev eth0 scope global")
	for _, a := range []string{"10.1.0.2/24", "fd00:1::2/64", "fd00:2::2/64"} {
		if !strings.Contains(addrs, a) {
			t.Errorf("lacks %s:\n%s", a, addrs)
		}
	}
	if strings.Contains(addrs, "tentative") {
		t.Errorf("not usable yet:\n%s", addrs)
	}
	routes := contract.Container(t, w, "ip route show table 1") + contract.Container(t, w, "ip -6 route show table 1")
	for _, r := range []string{
		"default via 10.1.0.1", "10.2.0.0/16 dev eth0 scope link", "10.3.0.0/16 via 10.1.0.1 dev eth0 metric 7 mtu 1300", "10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.2",
		"10.5.0.0/16 dev eth0 scope link src 10.1.0.2", "172.16.0.0/12 via 192.0.2.1 dev eth0 onlink",
		"default via fd00:1::1 dev eth0 metric 1024", "fd00:1::/64 dev eth0 proto kernel metric 256", "fd00:2::/64 dev eth0 src fd00:2::2",
	} {
		if !strings.Contains(routes, r) {
			t.Errorf("lacks %s:\n%s", r, routes)
		}
	}
	if !strings.Contains(routes, "local fd00:2::2 dev eth0") ||
		strings.Contains(routes, "fd00:2::/64 dev eth0 proto kernel") {
		t.Errorf("the address without a route to its subnet:\n%s", routes)
	}
	if main := contract.Container(t, w, "ip route") +
		contract.Container(t, w, "ip -6 route"); strings.Contains(main, "eth0") {
		t.Errorf("left in the main table:\n%s", main)
	}
	for key, want := range map[string]string{"keep_addr_on_down": "0", "accept_dad": "1"} {
		if is := contract.Sysctl(t, w.Container, "net/ipv6/conf/eth0/"+key); is != want {
			t.Errorf("%s is %s, was %s", key, is, want)
		}
	}
	if out := contract.Container(t, w, "ip -d link show blue"); !strings.Contains(out, "vrf table 1 ") {
		t.Error(out)
	}
	if err := v.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
}

// TestVRFMembers: the first member makes it and the last one removes it; a default route that one has already stays
// before another's.
func TestVRFMembers(t *testing.T) {
	w := needVRF(t)
	ctx := t.Context()
	before := contract.State(t, w)
	contract.Must(t, w, member0("blue", 0))
	contract.Container(t, w, "ip addr add 10.9.0.2/24 dev eth1")
	contract.Container(t, w, "ip addr add fd00:9::2/64 dev eth1 nodad")
	contract.Container(t, w, "ip route add default via 10.9.0.1")
	contract.Container(t, w, "ip -6 route add default via fd00:9::1")
	alone := contract.State(t, w)
	contract.Must(t, w, in1("blue"))
	for _, v := range []VRF{member0("blue", 0), in1("blue")} {
		if err := v.Verify(ctx, w); err != nil {
			t.Errorf("%v: %v", v, err)
		}
	}
	if out := contract.Container(t, w, "ip route get 192.0.2.1 vrf blue") +
		contract.Container(t, w, "ip -6 route get 2001:db8::1 vrf blue"); strings.Count(out, "dev eth0") != 2 {
		t.Errorf("the second member took the way out: %s", out)
	}
	for range 2 {
		if err := in1("blue").Remove(ctx, w); err != nil {
			t.Error(err)
		}
		if after := contract.State(t, w); after != alone {
			t.Errorf("when the second one has left: %s", contract.Difference(alone, after))
		}
	}
	contract.Container(t, w, "ip -6 route del default via fd00:9::1")
	contract.Container(t, w, "ip addr flush dev eth1 scope global")
	if err := member0("blue", 0).Verify(ctx, w); err != nil {
		t.Error(err)
	}
	// The one that goes last is not the one that made it; its configuration does not decode any more.
	contract.Must(t, w, in1("blue"))
	if err := member0("blue", 0).Remove(ctx, w); err != nil {
		t.Error(err)
	}
	if err := in1("").Remove(ctx, w); err != nil {
		t.Error(err)
	}
	if after := contract.State(t, w); after != before {
		t.Errorf("at the end: %s", contract.Difference(before, after))
	}
	if list, _ := os.ReadDir(w.Store.Dir); len(list) > 0 {
		t.Errorf("still remembered: %v", list)
	}
}

// TestVRFNotOurs: what was there before stays as it was.
func TestVRFNotOurs(t *testing.T) {
	w := needVRF(t)
	ctx := t.Context()
	contract.Container(t, w, "ip link add br0 type bridge")
	contract.Container(t, w, "ip link add green type vrf table 20")
	contract.Container(t, w, "ip link set green up")
	before := contract.State(t, w)
	refused := func(v VRF, say string) {
		t.Helper()
		changed, err := v.Ensure(ctx, w)
		if e := (*spec.Error)(nil); changed || !errors.As(err, &e) || e.Code != spec.CodeConfig ||
			!strings.Contains(err.Error(), say) {
			t.Errorf("%v: changed %v, %v; want %q", v, changed, err, say)
		}
		if after := contract.State(t, w); after != before {
			t.Errorf("%v: %s", v, contract.Difference(before, after))
		}
	}
	refused(member0("br0", 0), `vrfname: "br0": is a bridge in the container`)
	refused(member0("lo", 0), `vrfname: "lo": is lo`)
	refused(member0("green", 21), "table: 21: the VRF green has 20")
	refused(member0("blue", 20), "table: 20: the VRF green has it")
	if _, err := (VRF{Owner: spec.Owner{Network: "net", ContainerID: "c1", IfName: "eth7"}, Name: "blue"}).Ensure(ctx,
		w); !errors.Is(err, rtnl.ErrNoLink) {
		t.Errorf("no such link: %v", err)
	}

	// Somebody's own VRF gets a member and loses it.
	contract.Must(t, w, member0("green", 20))
	second := contract.State(t, w)
	if changed, err := member0("blue", 0).Ensure(ctx, w); changed || err == nil ||
		!strings.Contains(err.Error(), "eth0 belongs to a vrf, green already") {
		t.Errorf("changed %v, %v", changed, err)
	}
	if after := contract.State(t, w); after != second {
		t.Errorf("a refused one: %s", contract.Difference(second, after))
	}
	for range 2 {
		if err := member0("green", 20).Remove(ctx, w); err != nil {
			t.Error(err)
		}
		if after := contract.State(t, w); after != before {
			t.Errorf("afterwards: %s", contract.Difference(before, after))
		}
	}

	// A bridge's port stays one.
	contract.Container(t, w, "ip link set eth1 master br0")
	before = contract.State(t, w)
	refused(in1("blue"), "eth1 belongs to a bridge, br0 already")
	if err := in1("blue").Remove(ctx, w); err != nil {
		t.Error(err)
	}
	if after := contract.State(t, w); after != before {
		t.Errorf("a port: %s", contract.Difference(before, after))
	}
	contract.Container(t, w, "ip link set eth1 nomaster")

	// What the reference made is remembered nowhere and carries no mark.
	before = contract.State(t, w)
	contract.Container(t, w, "ip link add gold type vrf table 30")
	contract.Container(t, w, "ip link set gold up")
	contract.Container(t, w, "ip link set eth1 master gold")
	contract.Container(t, w, "ip route add 10.7.0.0/16 dev eth1 table 30")
	if err := in1("gold").Remove(ctx, w); err != nil {
		t.Error(err)
	}
	if out := contract.Container(t, w, "ip route show 10.7.0.0/16"); !strings.Contains(out, "eth1") {
		t.Errorf("its route is lost: %q", out)
	}
	contract.Container(t, w, "ip route del 10.7.0.0/16")
	if after := contract.State(t, w); after != before {
		t.Errorf("the reference's: %s", contract.Difference(before, after))
	}
}

// TestVRFTables: a free table is one that nobody uses, whoever asks at the same time.
func TestVRFTables(t *testing.T) {
	w := needVRF(t)
	contract.Container(t, w, "ip link add red type vrf table 1")
	contract.Container(t, w, "ip route add blackhole 10.0.0.0/8 table 2")
	contract.Container(t, w, "ip -6 rule add from fd00:77::/64 lookup 3")
	const n = 8
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		contract.Container(t, w, "ip link add p%d type veth peer name q%[1]d", i)
	}
	for i := range n {
		ns, err := kernel.Open(w.Container.Path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ns.Close)
		wg.Go(func() {
			o := spec.Owner{Network: "net", ContainerID: "c1", IfName: fmt.Sprint("p", i)}
			_, errs[i] = VRF{Owner: o, Name: fmt.Sprint("vrf", i/2)}.Ensure(t.Context(),
				&kernel.World{Container: ns, Store: w.Store})
		})
	}
	wg.Wait()
	tables := map[uint32]string{}
	links, err := rtnl.Links(w.Container)
	if err = errors.Join(append(errs, err)...); err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Kind != "vrf" {
			continue
		}
		if other := tables[l.Data.Table]; other != "" || l.Name != "red" && l.Data.Table < 4 {
			t.Errorf("%s has table %d, and so has %q", l.Name, l.Data.Table, other)
		}
		tables[l.Data.Table] = l.Name
	}
	if len(tables) != 1+n/2 {
		t.Errorf("%v", tables)
	}
}

// TestVRFGC takes members that are nobody's any more out of a container that lives on.
func TestVRFGC(t *testing.T) {
	w := needVRF(t)
	before := contract.State(t, w)
	contract.Must(t, w, member0("blue", 0))
	contract.Must(t, w, in1("blue"))
	keep := func(o [8]byte) bool { return false }
	if err := contract.SweepKinds(t.Context(), w, []plan.Kind{VRFKind("")}, contract.Owner.Network,
		func([8]byte) bool { return true }, nil); err != nil {
		t.Error(err)
	}
	if err := member0("blue", 0).Verify(t.Context(), w); err != nil {
		t.Errorf("one to be kept: %v", err)
	}
	for _, network := range []string{contract.Owner.Network, "lan"} {
		if err := contract.SweepKinds(t.Context(), w, []plan.Kind{VRFKind("")}, network, keep, nil); err != nil {
			t.Error(err)
		}
	}
	if after := contract.State(t, w); after != before {
		t.Errorf("%s", contract.Difference(before, after))
	}
}

// TestRouteInVRF: a route without a table of its own is the one in the VRF's table, and nowhere else (P16).
func TestRouteInVRF(t *testing.T) {
	w := needVRF(t)
	ctx := t.Context()
	var list []addr.Route
	for dst, via := range map[string]string{"0.0.0.0/0": "10.1.0.1", "10.2.0.0/16": "", "::/0": "fd00:1::1"} {
		r := addr.Route{Link: "eth0", Dst: netip.MustParsePrefix(dst)}
		if via != "" {
			r.Via = netip.MustParseAddr(via)
		}
		list = append(list, r)
	}
	verify := func(when string, good bool) {
		t.Helper()
		for _, r := range list {
			if err := r.Verify(ctx, w); (err == nil) != good {
				t.Errorf("%s: %v: %v", when, r, err)
			}
		}
	}
	verify("before", true)
	contract.Must(t, w, member0("blue", 0))
	verify("in the VRF", true)
	for _, f := range []string{"-4", "-6"} { // in a table that nobody looks the link's packets up in
		contract.Container(t, w, "ip %s route flush table 1 proto boot", f)
	}
	for _, r := range []string{"-4 route add default via 10.1.0.1 dev eth0 onlink table 600",
		"-4 route add 10.2.0.0/16 dev eth0 table 600", "-6 route add default via fd00:1::1 dev eth0 table 600"} {
		contract.Container(t, w, "ip %s", r)
	}
	verify("in another table", false)
}
