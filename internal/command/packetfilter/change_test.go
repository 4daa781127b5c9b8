package packetfilter

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// What rules change on a packet's way is not taken for what it was before: what is foreseen is what the kernel does, or
// it is said that it is not known.
func TestRulesThatChange(t *testing.T) {
	f := newForwarder(t)
	p := Packet{In: "in0", Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("203.0.113.5"), Proto: kernel.TCP,
		SrcPort: 1000, DstPort: 80, Fresh: true}.route()
	const forward = "chain f { type filter hook forward priority 0; "
	pre := func(priority string) string {
		return "chain p { type filter hook prerouting priority " + priority + "; "
	}
	for _, tc := range []struct {
		name, rules string
		unknown     bool // may be undecided; else it is known
	}{
		{"an element that is added", "set s { type ipv4_addr; flags dynamic; }; " + forward + "add @s { ip saddr }; ip saddr @s drop; }", true},
		{"one that is added before", "set s { type ipv4_addr; flags dynamic; }; " + pre("-300") + "add @s { ip saddr }; }; " + forward +
			"ip saddr @s drop; }", true},
		{"one that is deleted", "set s { type ipv4_addr; flags dynamic; elements = { 10.1.0.5 }; }; " + forward +
			"delete @s { ip saddr }; ip saddr @s drop; }", true},
		{"one to a set that is full", "set s { type ipv4_addr; size 1; flags dynamic; elements = { 10.1.0.9 }; }; " + forward +
			"add @s { ip saddr } accept; drop; }", true},
		{"another set", "set s { type ipv4_addr; flags dynamic; }; set r { type ipv4_addr; }; " + forward +
			"add @s { ip saddr }; ip saddr @r drop; }", false},
		{"notrack behind conntrack", pre("0") + "notrack; }; " + forward + "ct state untracked drop; }", false},
		{"notrack before conntrack", pre("-300") + "notrack; }; " + forward + "ct state untracked drop; }", false},
		{"notrack that a limit decides", "chain n { notrack; }; " + pre("-300") + "limit rate over 1/second burst 1 packets jump n; }; " + forward +
			"ct state untracked drop; }", true},
		{"a packet's type", pre("0") + "meta l4proto tcp meta pkttype set broadcast; }; " + forward + "meta pkttype broadcast drop; }", true},
		{"an address", pre("-300") + "ip protocol tcp ip saddr set 10.1.0.6; }; " + forward + "ip saddr 10.1.0.5 drop; }", true},
		{"a time to live", pre("-300") + "ip protocol tcp ip ttl set 1; }; " + forward + "}", true},
		{"the kind of service", pre("-300") + "ip dscp set cs1; }; " + forward + "ip saddr 10.1.0.5 drop; }", false},
		{"a fragment", pre("-150") + "ip protocol tcp ip frag-off set 1; }; " + forward + "ip frag-off & 0x1fff != 0 drop; }", true},
		{"the first way", forward + "ct direction reply drop; }", false},
		{"a proxy that answers for it", forward + "tcp flags syn synproxy mss 1460 wscale 7; }", true},
		{"a proxy by a socket", pre("-150") + "meta l4proto tcp tproxy ip to 127.0.0.1:7; }", true},
		{"a zone", pre("-300") + "ct zone set 5; }; " + forward + "ct state new drop; }", true},
		{"a mark of conntrack", pre("0") + "ct mark set 5; }; " + forward + "ct mark 0 drop; }", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := f.load("flush ruleset\ntable ip t { "+tc.rules+"\n}\n", "nft", "-f", "-"); err != nil {
				if !strings.Contains(err.Error(), "Could not process rule: No such file") {
					t.Fatal(err)
				}
				nstest.Skip(t, err) // this kernel lacks it
			}
			verdict := func() Outcome {
				at, sum := p, Accepted
				for _, hook := range []int{Prerouting, Forward} {
					verdicts, after, err := Through(f.ns, hook, at)
					if err != nil {
						t.Fatal(err)
					}
					for _, v := range verdicts {
						if v.Outcome == Dropped || v.Outcome == Undecided && sum == Accepted {
							sum = v.Outcome
						}
					}
					at = after
				}
				return sum
			}
			got, came := verdict(), f.forward([]Packet{p})[0]
			if got == Undecided && tc.unknown {
				return
			}
			if want := map[bool]Outcome{true: Accepted, false: Dropped}[came]; got != want {
				t.Errorf("%v, but the kernel has %v it", got, want)
			}
		})
	}
}

// A mask of iptables that is no prefix is shown as it is.
func TestMaskOfLegacy(t *testing.T) {
	path := nstest.NewNS(t)
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	nstest.RunIn(t, path, "iptables-legacy", "-A", "FORWARD", "-s", "10.77.33.2/255.255.0.255", "-d", "10.2.0.0/16", "-j", "DROP")
	var b strings.Builder
	if err := DumpLegacy(ns, &b); err != nil || !strings.Contains(b.String(), "ip saddr 10.77.0.2/255.255.0.255 ip daddr 10.2.0.0/16 drop") {
		t.Errorf("%v\n%s", err, b.String())
	}
}
