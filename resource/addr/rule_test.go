package addr

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/contract"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// clause: P12 P15
func TestRule(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Must(t, w, attached("eth0")...)
	p := netip.MustParsePrefix
	for _, c := range []struct {
		rule     Rule
		shown    string // what ip(8) says of it
		breakers []contract.Breakage
	}{
		{Rule{Priority: 32765, From: p("10.1.0.2/32"), Table: 100}, "32765: from 10.1.0.2 lookup 100 proto 250",
			[]contract.Breakage{
				contract.Break("gone", contract.In(w, "ip rule del from 10.1.0.2"), "is missing"),
				contract.Break("another table", contract.In(w, "ip rule del from 10.1.0.2",
					"ip rule add from 10.1.0.2 priority 32765 lookup 101"), "is missing"),
				contract.Break("another address", contract.In(w, "ip rule del from 10.1.0.2",
					"ip rule add from 10.1.0.3 priority 32765 lookup 100"), "is missing"),
				contract.Break("one more condition", contract.In(w, "ip rule del from 10.1.0.2",
					"ip rule add from 10.1.0.2 oif eth0 priority 32765 lookup 100"), "is missing"),
				contract.Break("inverted", contract.In(w, "ip rule del from 10.1.0.2",
					"ip rule add not from 10.1.0.2 priority 32765 lookup 100"), "is missing"),
				contract.Break("suppressed", contract.In(w, "ip rule del from 10.1.0.2",
					"ip rule add from 10.1.0.2 priority 32765 lookup 100 suppress_prefixlength 0"), "is missing"),
				contract.Break("type of service", contract.In(w, "ip rule del from 10.1.0.2",
					"ip rule add from 10.1.0.2 tos 0x10 priority 32765 lookup 100"), "is missing"),
				contract.Break("after the main table", contract.In(w, "ip rule del from 10.1.0.2",
					"ip rule add from 10.1.0.2 priority 32767 lookup 100"), "priority is 32767, want 32765"),
			}},
		{Rule{Priority: 32765, From: p("fd00::2/128"), Table: 4294967295}, "32765: from fd00::2 lookup 4294967295 proto 250",
			[]contract.Breakage{
				contract.Break("gone", contract.In(w, "ip -6 rule del from fd00::2"), "is missing"),
			}},
		{Rule{Where: resource.Host, Priority: 31000, To: p("10.1.0.0/16"), IIF: "cni0", Table: rtnl.MainTable},
			"31000: from all to 10.1.0.0/16 iif cni0 lookup main proto 250", []contract.Breakage{
				contract.Break("gone", contract.On(w, "ip rule del priority 31000"), "is missing"),
			}},
		{Rule{Where: resource.Host, Priority: 31001, IIF: "cni0", Mask: 0x4000, Table: 7001},
			"31001: from all fwmark 0/0x4000 iif cni0 lookup 7001 proto 250", []contract.Breakage{
				contract.Break("mark", contract.On(w, "ip rule del priority 31001",
					"ip rule add iif cni0 fwmark 0/0x2000 priority 31001 lookup 7001"), "is missing"),
				contract.Break("link", contract.On(w, "ip rule del priority 31001",
					"ip rule add iif cni1 fwmark 0/0x4000 priority 31001 lookup 7001"), "is missing"),
			}},
		{Rule{Where: resource.Host, V6: true, Priority: 31001, IIF: "cni0", Mark: 0x4000, Mask: 0x4000, Table: 7001},
			"31001: from all fwmark 0x4000/0x4000 iif cni0 lookup 7001 proto 250", nil},
		{Rule{Where: resource.Host, Priority: 31002, To: p("10.1.0.0/16"), Mask: 0x4000, Action: Prohibit},
			"31002: from all to 10.1.0.0/16 fwmark 0/0x4000 prohibit proto 250", []contract.Breakage{
				contract.Break("action", contract.On(w, "ip rule del priority 31002",
					"ip rule add to 10.1.0.0/16 fwmark 0/0x4000 priority 31002 unreachable"), "is missing"),
			}},
		{Rule{Where: resource.Host, Priority: 31002, To: p("fd00::/64"), Action: Unreachable},
			"31002: from all to fd00::/64 unreachable proto 250", nil},
	} {
		t.Run(c.rule.String(), func(t *testing.T) {
			state := contract.RuleState(w)
			before := state(t)
			contract.Terms{State: state, Repair: func(t *testing.T) {
				foreign(t, w)
				contract.Must(t, w, c.rule)
				shown := strings.ReplaceAll(state(t), "\t", " ")
				if !strings.Contains(strings.Join(strings.Fields(shown), " "), c.shown) {
					t.Errorf("ip rule shows\n%s\nwant %s", shown, c.shown)
				}
			}}.Test(t, w, c.rule, c.breakers...)
			if after := state(t); after != before {
				t.Errorf("left behind:%s", contract.Difference(before, after))
			}
		})
	}
}

// foreign deletes the rules that a breaker made: nobody's protocol is ours.
func foreign(t *testing.T, w *kernel.World) {
	t.Helper()
	for _, ns := range []*kernel.NS{w.Host, w.Container} {
		for _, family := range []uint8{rtnl.IPv4, rtnl.IPv6} {
			list, err := rtnl.Rules(ns, family)
			if err != nil {
				t.Fatal(err)
			}
			for _, have := range list {
				if have.Priority != 0 && have.Priority != rtnl.MainPriority && (have.Priority != 32767 || have.From.IsValid()) {
					if err := rtnl.DelRule(ns, have); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}

// A rule that somebody else made and that does the same will do, and stays where it is.
func TestRuleOfSomebodyElse(t *testing.T) {
	w := contract.NewWorld(t)
	contract.Container(t, w, "ip rule add from 10.1.0.2 priority 32765 lookup 100")
	before := contract.RuleState(w)(t)
	r := Rule{Priority: 32765, From: netip.MustParsePrefix("10.1.0.2/32"), Table: 100}
	if changed, err := r.Ensure(t.Context(), w); changed || err != nil {
		t.Errorf("changed %v, error %v", changed, err)
	}
	if err := r.Verify(t.Context(), w); err != nil {
		t.Error(err)
	}
	if err := r.Remove(t.Context(), w); err != nil {
		t.Error(err)
	}
	if after := contract.RuleState(w)(t); after != before {
		t.Errorf("changed:%s", contract.Difference(before, after))
	}
}

// Many who ask for one rule at a time make one.
//
// clause: P20
func TestRuleAtOnce(t *testing.T) {
	w := contract.NewWorld(t)
	r := Rule{Where: resource.Host, Priority: 31000, IIF: "cni0", Table: 7001}
	var made [8]bool
	var wg sync.WaitGroup
	for i := range made {
		wg.Go(func() {
			ns, err := kernel.Open(w.Host.Path)
			if err != nil {
				t.Error(err)
				return
			}
			defer ns.Close()
			if made[i], err = r.Ensure(t.Context(), &kernel.World{Host: ns}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := rtnl.Rules(w.Host, rtnl.IPv4)
	if err != nil || len(list) != 4 {
		t.Errorf("%d rules, error %v: %v", len(list), err, list)
	}
	if n := len(slices.DeleteFunc(made[:], func(b bool) bool { return !b })); n != 1 {
		t.Errorf("%d say that they made it", n)
	}
}

// A route that answers "prohibited" leads to no link.
func TestProhibitRoute(t *testing.T) {
	w := contract.NewWorld(t)
	for _, c := range []struct{ dst, family string }{{"10.3.0.0/16", "-4"}, {"fd03::/64", "-6"}} {
		r := rtnl.Route{Dst: netip.MustParsePrefix(c.dst), Table: 7001, Type: rtnl.ProhibitRoute,
			Protocol: rtnl.OurProtocol}
		if err := rtnl.AddRoute(w.Host, r, true); err != nil {
			t.Fatal(err)
		}
		if out := contract.Host(t, w, "ip %s route show table 7001", c.family); !strings.Contains(out, "prohibit "+c.dst) ||
			!strings.Contains(out, "proto 250") {
			t.Errorf("ip route shows %s", out)
		}
		list, err := rtnl.Routes(w.Host, rtnl.RouteFilter{Family: map[string]uint8{"-4": rtnl.IPv4,
			"-6": rtnl.IPv6}[c.family], Table: 7001})
		if err != nil || len(list) != 1 || list[0].Type != rtnl.ProhibitRoute || list[0].Dst != r.Dst ||
			list[0].Protocol != rtnl.OurProtocol {
			t.Errorf("listed: %+v, %v", list, err)
		}
		for range 2 {
			if err := rtnl.DelRoute(w.Host, r); err != nil {
				t.Error(err)
			}
		}
		if out := contract.Host(t, w, "ip %s route show table 7001", c.family); out != "" {
			t.Errorf("left: %s", out)
		}
	}
}
