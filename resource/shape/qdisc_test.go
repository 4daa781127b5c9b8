package shape

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// qdiscState is contract.State and what tc(8) shows of the link shaped, and of ours.
func qdiscState(w *kernel.World, links ...string) func(t testing.TB) string {
	return func(t testing.TB) string {
		s := contract.State(t, w)
		for i, ns := range []*kernel.NS{w.Host, w.Container} {
			s += "qdiscs " + nstest.RunIn(t, ns.Path, "sh", "-c", "tc qdisc show | sed 's/direct_packets_stat [0-9]*//'")
			for _, l := range links {
				if strings.HasPrefix(l, "c/") != (i == 1) {
					continue
				}
				l = strings.TrimPrefix(l, "c/")
				s += l + " " + nstest.RunIn(t, ns.Path, "sh", "-c",
					"tc class show dev "+l+"; tc filter show dev "+l+"; tc filter show dev "+l+
						" ingress 2>&1 | sed 's/index [0-9]* //'; true")
			}
		}
		return s
	}
}

func pairOf(t *testing.T, w *kernel.World) {
	t.Helper()
	contract.Host(t, w, "ip link add v0 type veth peer name eth0 netns %s",
		strings.TrimPrefix(w.Container.Path, "/run/netns/"))
	contract.Host(t, w, "ip link set v0 up")
	contract.Container(t, w, "ip link set eth0 up")
}

func mbit(n uint64) Limit { return Limit{Rate: n * 125000, Burst: 125000, Queue: 187500} }

// clause: P16
func TestQdiscLaws(t *testing.T) {
	w := contract.NewWorld(t)
	pairOf(t, w)
	for _, where := range []resource.Where{resource.Host, resource.Container} {
		link, do := "v0", contract.Host
		if where == resource.Container {
			link, do = "eth0", contract.Container
		}
		q := Qdisc{Owner: contract.Owner, Where: where, Link: link, Limit: mbit(20)}
		book := contract.Terms{State: qdiscState(w, "v0", "c/eth0")}
		tc := func(format string, args ...any) func(*testing.T) {
			return func(t *testing.T) { do(t, w, "tc qdisc "+format+" dev "+link+" root handle fa1d: %s", args...) }
		}
		book.Test(t, w, q,
			contract.Break("gone", func(t *testing.T) { do(t, w, "tc qdisc del dev %s root", link) }, "the qdisc is missing"),
			contract.Break("rate", tc("change", "tbf rate 30mbit burst 125000 limit 187500"),
				"rate is 30000000bit, want 20000000bit"),
			contract.Break("burst", tc("change", "tbf rate 20mbit burst 100000 limit 187500"), "burst is 100000b, want 125000b"),
			contract.Break("limit", tc("change", "tbf rate 20mbit burst 125000 limit 187501"), "limit is 187501b, want 187500b"),
			contract.Break("kind", func(t *testing.T) {
				do(t, w, "tc qdisc del dev %s root", link)
				do(t, w, "tc qdisc add dev %s root handle fa1d: htb", link)
			}, "kind is htb, want tbf"),
		)
	}
}

// clause: P16
func TestQdiscOfSubnetsLaws(t *testing.T) {
	w := contract.NewWorld(t)
	pairOf(t, w)
	subnets := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:1:2:3:4:5::/90"),
		netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("::/0")}
	for _, except := range []bool{false, true} {
		q := Qdisc{Owner: contract.Owner, Where: resource.Host, Link: "v0", Limit: mbit(20)}
		q.Only, q.From = subnets, true
		other := "1"
		if except {
			q.Only, q.Except, q.From = nil, subnets, false
			other = "0"
		}
		change := func(what string) func(*testing.T) {
			return func(t *testing.T) {
				contract.Host(t, w, "tc class change dev v0 parent fa1d: classid fa1d:1 htb %s", what)
			}
		}
		contract.Terms{State: qdiscState(w, "v0")}.Test(t, w, q,
			contract.Break("gone", func(t *testing.T) { contract.Host(t, w, "tc qdisc del dev v0 root") }, "the qdisc is missing"),
			contract.Break("rate", change("rate 10mbit ceil 20mbit burst 125000"), "rate is 10000000bit, want 20000000bit"),
			contract.Break("burst", change("rate 20mbit burst 64000"), "burst is 64000b, want 125000b"),
			contract.Break("limit", func(t *testing.T) {
				contract.Host(t, w,
					"tc qdisc replace dev v0 parent fa1d:1 bfifo limit 5000")
			}, "limit is 5000b"),
			contract.Break("filter gone", func(t *testing.T) {
				contract.Host(t, w,
					"tc filter del dev v0 parent fa1d: pref 2 protocol ipv6")
			}, "the filter of fd00:1:2:3:4:5::/90 is missing"),
			contract.Break("one more filter", func(t *testing.T) {
				contract.Host(t, w, "tc filter add dev v0 parent fa1d: pref 1 protocol ip u32 match ip dst 172.16.0.0/12 flowid fa1d:%s", other)
			}, "there are 5 filters, want 4"),
			contract.Break("kind", func(t *testing.T) {
				contract.Host(t, w, "tc qdisc del dev v0 root")
				contract.Host(t, w, "tc qdisc add dev v0 root handle fa1d: tbf rate 20mbit burst 125000 limit 187500")
			}, "kind is tbf, want htb"),
		)
	}
}

// clause: P16
func TestRedirectLaws(t *testing.T) {
	for _, where := range []resource.Where{resource.Host, resource.Container} {
		w := contract.NewWorld(t)
		pairOf(t, w)
		name := identity.LinkName("ifb", contract.Owner)
		link, do := "v0", contract.Host
		if where == resource.Container {
			link, do = "eth0", contract.Container
		}
		i := IFB{Owner: contract.Owner, Where: where, For: link}
		contract.Terms{}.Test(t, w, i,
			contract.Break("gone", func(t *testing.T) { do(t, w, "ip link del %s", name) }, "link does not exist"),
			contract.Break("down", func(t *testing.T) { do(t, w, "ip link set %s down", name) }, "state is down, want up"),
		)
		contract.Must(t, w, i)
		// A call that was killed has left it down and without a name to its owner.
		do(t, w, "ip link del %s", name)
		do(t, w, "ip link add %s mtu 1300 group %d type ifb", name, identity.LinkGroup(contract.Owner.Network))
		contract.Must(t, w, i)
		if s := do(t, w, "ip link show %s", name); !strings.Contains(s, "mtu 1500") ||
			!strings.Contains(s, identity.Tag(contract.Owner)) {
			t.Error(s)
		}
		r := Redirect{Owner: contract.Owner, Where: where, Link: link}
		say := "no filter redirects incoming packets to " + name
		contract.Terms{State: qdiscState(w, "v0", "c/eth0")}.Test(t, w, r,
			contract.Break("filter gone", func(t *testing.T) { do(t, w, "tc filter del dev %s ingress", link) }, say),
			contract.Break("qdisc gone", func(t *testing.T) { do(t, w, "tc qdisc del dev %s ingress", link) }, say),
			contract.Break("elsewhere", func(t *testing.T) {
				do(t, w, "tc filter del dev %s ingress", link)
				do(t, w, "tc filter add dev %s ingress pref 64029 protocol all u32 match u32 0 0 action mirred egress redirect dev lo", link)
			}, say),
		)
	}
}

// What somebody else gave a link stays, and so do their filters.
func TestQdiscOfSomebodyElse(t *testing.T) {
	w := contract.NewWorld(t)
	pairOf(t, w)
	state := qdiscState(w, "v0")
	contract.Host(t, w, "tc qdisc add dev v0 root handle 7: htb")
	contract.Host(t, w, "tc qdisc add dev v0 ingress")
	contract.Host(t, w, "tc filter add dev v0 ingress pref 3 protocol ip u32 match ip src 192.0.2.0/24 action mirred egress redirect dev lo")
	before := state(t)
	q := Qdisc{Owner: contract.Owner, Where: resource.Host, Link: "v0", Limit: mbit(20)}
	if _, err := q.Ensure(t.Context(), w); err == nil ||
		!strings.Contains(err.Error(), "qdisc htb of another program, with handle 7:") {
		t.Error(err)
	}
	p := plan.Plan{IFB{Owner: contract.Owner, Where: resource.Host, For: "v0"},
		Redirect{Owner: contract.Owner, Where: resource.Host, Link: "v0"}}
	for range 2 {
		contract.Must(t, w, p...)
		if s := contract.Host(t, w, "tc filter show dev v0 ingress"); !strings.Contains(s, "pref 3 ") ||
			!strings.Contains(s, "pref 64029 ") {
			t.Error(s)
		}
		if err := engine.Undo(t.Context(), w, append(p, q)); err != nil {
			t.Fatal(err)
		}
		if after := state(t); after != before {
			t.Error(contract.Difference(before, after))
		}
	}
}

// A tap outlives its attachment: what was put on it goes without a name, with a sweep too, and not from another
// link that has the name now.
//
// clause: P12 P22
func TestShapedTap(t *testing.T) {
	w := contract.NewWorld(t)
	pairOf(t, w)
	tap := func(t *testing.T) {
		contract.Host(t, w, "ip link add tap0 type bridge")
		contract.Host(t, w, "ip link set tap0 up")
	} // of no kind that dies
	tap(t)
	state := qdiscState(w)
	before := state(t)
	p := plan.Plan{
		Qdisc{Owner: contract.Owner, Where: resource.Host, Link: "tap0", Limit: mbit(20)},
		IFB{Owner: contract.Owner, Where: resource.Host, For: "tap0"},
		Qdisc{Owner: contract.Owner, Where: resource.Host, Link: identity.LinkName("ifb", contract.Owner), Limit: mbit(10)},
		Redirect{Owner: contract.Owner, Where: resource.Host, Link: "tap0"},
	}
	blind := plan.Plan{IFB{Owner: contract.Owner, Where: resource.Host},
		Qdisc{Owner: contract.Owner, Where: resource.Host}, Redirect{Owner: contract.Owner, Where: resource.Host}}
	for name, remove := range map[string]func() error{
		"remove": func() error { return engine.Undo(t.Context(), w, blind) },
		"sweep":  func() error { return sweep(t.Context(), w, contract.Owner.Network, nil) },
	} {
		contract.Must(t, w, p...)
		if err := sweep(t.Context(), w, contract.Owner.Network, []spec.Owner{contract.Owner}); err != nil {
			t.Fatal(err)
		}
		if err := engine.Verify(t.Context(), w, p); err != nil {
			t.Fatalf("after a sweep that keeps it: %v", err)
		}
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		if after := state(t); after != before {
			t.Errorf("%s: %s", name, contract.Difference(before, after))
		}
		if left, err := os.ReadDir(w.Store.Dir); err != nil || len(left) != 0 {
			t.Errorf("%s left records %v, error %v", name, left, err)
		}
	}
	contract.Must(t, w, p...)
	contract.Host(t, w, "ip link del tap0")
	tap(t)
	contract.Host(t, w, "tc qdisc add dev tap0 root handle fa1d: tbf rate 1mbit burst 5000 limit 5000")
	if err := engine.Undo(t.Context(), w, blind); err != nil {
		t.Fatal(err)
	}
	if s := contract.Host(t, w, "tc qdisc show dev tap0"); !strings.Contains(s, "fa1d:") {
		t.Errorf("another link's qdisc was deleted: %s", s)
	}
}

// NoLimit is nothing to do, or takes away what an earlier call left.
func TestNoLimit(t *testing.T) {
	w := contract.NewWorld(t)
	pairOf(t, w)
	for _, where := range []resource.Where{resource.Host, resource.Container} {
		link := map[resource.Where]string{resource.Host: "v0", resource.Container: "eth0"}[where]
		none := plan.Plan{NoLimit{Owner: contract.Owner, Where: where, Link: link},
			NoLimit{Owner: contract.Owner, Where: where, Link: link, Incoming: true}}
		for _, r := range none {
			contract.Terms{Present: true}.Test(t, w, r)
		}
		before := qdiscState(w, "v0", "c/eth0")(t)
		contract.Must(t, w, Qdisc{Owner: contract.Owner, Where: where, Link: link, Limit: mbit(20)},
			IFB{Owner: contract.Owner, Where: where, For: link}, Redirect{Owner: contract.Owner, Where: where, Link: link})
		err := engine.Verify(t.Context(), w, none)
		if s := fmt.Sprint(err); !strings.Contains(s, "qdisc tbf is there") ||
			!strings.Contains(s, identity.LinkName("ifb", contract.Owner)+" is there") {
			t.Error(err)
		}
		contract.Must(t, w, none...)
		if after := qdiscState(w, "v0", "c/eth0")(t); after != before {
			t.Error(contract.Difference(before, after))
		}
		contract.Must(t, w, NoLimit{Owner: contract.Owner, Where: where, Link: "none"})
	}
}

// Fix puts right what is wrong on the host, in the order of the plan, and touches nothing else.
func TestFixShaped(t *testing.T) {
	w := contract.NewWorld(t)
	pairOf(t, w)
	name := identity.LinkName("ifb", contract.Owner)
	p := plan.Plan{
		Qdisc{Owner: contract.Owner, Where: resource.Host, Link: "v0", Limit: mbit(20)}, IFB{Owner: contract.Owner,
			Where: resource.Host, For: "v0"},
		Qdisc{Owner: contract.Owner, Where: resource.Host, Link: name, Limit: mbit(10)}, Redirect{Owner: contract.Owner,
			Where: resource.Host, Link: "v0"},
	}
	contract.Must(t, w, p...)
	for _, broken := range []string{
		"true", "tc qdisc del dev v0 root", "tc qdisc change dev " + name +
			" root handle fa1d: tbf rate 1mbit burst 5000 limit 5000",
		"ip link set " + name + " down", "ip link del " + name, "tc qdisc del dev v0 ingress", "tc filter del dev v0 ingress",
	} {
		contract.Host(t, w, "%s", broken)
		changed := false
		for _, r := range p {
			fixed, err := resource.TraitsOf(r).Fix(t.Context(), w)
			if err != nil {
				t.Errorf("after %s: %v: %v", broken, r, err)
			}
			changed = changed || fixed
		}
		if err := engine.Verify(t.Context(), w, p); err != nil || changed != (broken != "true") {
			t.Errorf("after %s: changed %v, then %v", broken, changed, err)
		}
	}
	inside := Qdisc{Owner: contract.Owner, Where: resource.Container, Link: "eth0", Limit: mbit(20)}
	if changed, err := inside.Traits().Fix(t.Context(), w); err != nil || changed {
		t.Errorf("in the container: changed %v, %v", changed, err)
	}
}

// What had to be raised to the length of a packet is no drift when the MTU has become another; what no packet of
// the link fits into any more is.
func TestQdiscAndMTU(t *testing.T) {
	w := contract.NewWorld(t)
	pairOf(t, w)
	for _, some := range [][]netip.Prefix{nil, {netip.MustParsePrefix("10.0.0.0/8")}} {
		q := Qdisc{Owner: contract.Owner, Where: resource.Host, Link: "v0",
			Limit: Limit{Rate: 125000, Burst: 1000, Queue: 1000, Only: some}}
		contract.Must(t, w, q)
		contract.Host(t, w, "ip link set v0 mtu 1400")
		if err := q.Verify(t.Context(), w); err != nil {
			t.Error(err)
		}
		contract.Host(t, w, "ip link set v0 mtu 9000")
		if err := q.Verify(t.Context(), w); err == nil || !strings.Contains(err.Error(), "limit is 1514b, want 9014b") ||
			some == nil && !strings.Contains(err.Error(), "burst is 1514b, want 9014b") {
			t.Error(err)
		}
		contract.Host(t, w, "ip link set v0 mtu 1500")
	}
}

// A burst of less than a packet lets a packet pass, and rates and bursts of any size come back as they were asked.
func TestQdiscSizes(t *testing.T) {
	w := contract.NewWorld(t)
	pairOf(t, w)
	some := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, l := range []Limit{
		{Rate: 1, Burst: 1, Queue: 1}, {Rate: 1, Burst: 1, Queue: 1, Only: some}, {Rate: 1 << 35, Burst: 1<<32 - 2,
			Queue: 1<<32 - 1},
		{Rate: 1 << 35, Burst: 1<<32 - 2, Queue: 1<<32 - 1, Only: some}, {Rate: 1<<32 - 1, Burst: 1 << 20,
			Queue: 1 << 20}, {Rate: 125000, Burst: 1<<32 - 2, Queue: 1 << 20},
		{Rate: 1<<61 - 1, Burst: 1<<32 - 2, Queue: 1 << 20},
	} {
		q := Qdisc{Owner: contract.Owner, Where: resource.Host, Link: "v0", Limit: l}
		if _, err := q.Ensure(context.Background(), w); err != nil {
			t.Errorf("%v: %v", q, err)
		}
		if err := q.Verify(t.Context(), w); err != nil {
			t.Errorf("%v: %v", q, err)
		}
	}
}

// TestShapedLinkGoes takes limits off a link that goes between the look for it and the removal: what is gone is
// removed.
//
// clause: P12
func TestShapedLinkGoes(t *testing.T) {
	w := contract.NewWorld(t)
	const none = 9999
	for what, err := range map[string]error{
		"qdisc":                           dropQdisc(w.Host, none),
		"redirect":                        dropRedirect(w.Host, none, 0),
		"the reference plugin's redirect": dropRedirect(w.Host, none, none),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
