package trace

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

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
