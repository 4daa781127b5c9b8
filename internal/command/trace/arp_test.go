package trace

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// What comes in answer is not foreseen from what the packet was, nor from what it has changed.
func TestAnswersThroughRules(t *testing.T) {
	nstest.NeedProgram(t, "ip", "nft")
	f := newField(t)
	file := filepath.Join(t.TempDir(), "rules")
	const forward = "chain c { type filter hook forward priority 0; "
	for _, tc := range []struct {
		rules string
		want  State
	}{
		{forward + "ct direction reply drop; }", Stops},
		{forward + "ct direction original accept; drop; }", Stops},
		{forward + "ct direction reply accept; ct direction original accept; drop; }", Passes},
		{"set s { type ipv4_addr; flags dynamic; }; " + forward + "add @s { ip daddr }; ip saddr @s drop; }", Unknown},
		{"chain p { type filter hook prerouting priority -300; iifname br0 notrack; }; " + forward +
			"ct state { established, untracked } accept; drop; }", Unknown},
	} {
		rules := "flush ruleset\ntable ip t { " + tc.rules + "\n}\n"
		if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
		nstest.Run(t, "nft", "-f", file)
		q := Question{From: f.byName["a"], Dst: netip.MustParseAddr("10.2.0.2"), Proto: kernel.TCP, DstPort: 7000}
		a, err := f.Trace(q)
		if err != nil {
			t.Fatal(err)
		}
		if a.Verdict != tc.want && !(tc.want == Stops && strings.Contains(a.Why, "answer")) {
			t.Errorf("want %v: %s", tc.want, told(rules, a))
		}
		if a, err := f.Live(context.Background(), q); err != nil || (a.Seen == Passes) != (tc.want == Passes) {
			t.Errorf("%v\n%s", err, told(rules, a))
		}
	}
}

// What the host sends to itself comes in by lo with what conntrack knew of it on its way out.
func TestStateOnLoopback(t *testing.T) {
	nstest.NeedProgram(t, "ip", "nft")
	f := newField(t)
	file := filepath.Join(t.TempDir(), "rules")
	for _, rule := range []string{"ct state invalid drop", "ct state new drop", "notrack", "ct status confirmed drop"} {
		rules := "flush ruleset\ntable ip t { chain p { type filter hook prerouting priority -300; " + rule +
			"; }; chain i { type filter hook input priority 0; ct state untracked drop; ct status dnat drop; }; }\n"
		if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
		nstest.Run(t, "nft", "-f", file)
		q := Question{Dst: netip.MustParseAddr("10.1.0.1"), Proto: kernel.TCP, DstPort: 7000}
		a, err := f.Live(context.Background(), q)
		if err != nil || a.Differs {
			t.Errorf("%s: %v\n%s", rule, err, told(rules, a))
		}
		if foreseen, err := f.Trace(q); err != nil || foreseen.Verdict != Unknown && (a.Seen == Passes) != (foreseen.Verdict == Passes) {
			t.Errorf("%s: %v\n%s", rule, err, told(rules, foreseen))
		}
	}
}

// Who may not ask for the MAC address of the next hop, or does not hear the answer, sends nothing.
func TestQuestionsOnBridge(t *testing.T) {
	nstest.NeedProgram(t, "ip", "nft")
	f := newField(t)
	file := filepath.Join(t.TempDir(), "rules")
	for _, tc := range []struct {
		hook, rule string
		from       string
		want       State
	}{
		{"forward", "arp operation request drop", "a", Stops},
		{"forward", "arp operation reply drop", "a", Stops},
		{"forward", "arp saddr ip 10.1.0.3 drop", "a", Stops},
		{"forward", "arp daddr ip 10.1.0.77 drop", "a", Passes},
		{"forward", "arp operation rreply drop", "a", Passes},
		{"forward", "arp operation request limit rate over 1/day burst 1 packets drop", "a", Unknown},
		{"output", "arp operation request drop", "host", Stops},
		{"input", "arp operation reply drop", "host", Stops},
		{"input", "arp operation request drop", "host", Passes},
	} {
		rules := "flush ruleset\ntable bridge t { chain c { type filter hook " + tc.hook + " priority 0; " + tc.rule + "; }; }\n"
		if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
		nstest.Run(t, "nft", "-f", file)
		nstest.Run(t, "ip", "-4", "neigh", "flush", "all")
		for _, name := range []string{"a", "b"} {
			nstest.RunIn(t, f.byName[name].Netns, "ip", "-4", "neigh", "flush", "all")
		}
		q := Question{From: f.byName[tc.from], Dst: netip.MustParseAddr("10.1.0.3"), Proto: kernel.TCP, DstPort: 7000}
		foreseen, err := f.Trace(q)
		if err != nil || foreseen.Verdict != tc.want {
			t.Errorf("%s %s: %v", tc.hook, tc.rule, err)
			t.Log(told(rules, foreseen))
		}
		if a, err := f.Live(context.Background(), q); err != nil || tc.want != Unknown && (a.Seen == Passes) != (tc.want == Passes) {
			t.Errorf("%s %s: %v\n%s", tc.hook, tc.rule, err, told(rules, a))
		}
	}
}
