package foreign

import (
	"fmt"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// What may drop every forwarded packet is named, whoever made it; what asks for something, or names the link, is not.
func TestMayDrop(t *testing.T) {
	path := nstest.NewNS(t)
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	const site = "nft 'flush ruleset; add table inet site; add chain inet site hosts { type filter hook forward priority 5; policy %s; }%s'"
	rule := func(policy, rule string) string {
		if rule != "" {
			rule = "; add rule inet site hosts " + rule
		}
		return fmt.Sprintf(site, policy, rule)
	}
	for _, step := range []struct{ do, want string }{
		{"true", "[]"},
		{rule("accept", "counter"), "[]"},
		{rule("drop", ""), "[table inet site chain hosts (policy drop)]"},
		{rule("drop", "ct state established accept"), "[table inet site chain hosts (policy drop)]"},
		{rule("drop", "iifname cni0 accept"), "[]"},
		{rule("drop", "iifname cni01 accept"), "[table inet site chain hosts (policy drop)]"},
		{rule("accept", "drop"), "[table inet site chain hosts (a rule drops all)]"},
		{rule("accept", "counter log reject"), "[table inet site chain hosts (a rule drops all)]"},
		{rule("accept", "limit rate 1/day drop"), "[]"},
		{rule("accept", "ip saddr 10.0.0.0/8 drop"), "[]"},
		{rule("accept", "ct state established accept; add rule inet site hosts drop"),
			"[table inet site chain hosts (a rule drops all)]"},
		{"nft flush ruleset; iptables-nft -P FORWARD DROP", "[table ip filter chain FORWARD (iptables-nft, policy drop)]"},
		{"iptables-nft -P FORWARD ACCEPT; iptables-nft -A FORWARD -m comment --comment x -j REJECT",
			"[table ip filter chain FORWARD (iptables-nft, a rule drops all)]"},
		{"iptables-nft -I FORWARD -i cni0 -j ACCEPT", "[]"},
		{"iptables-nft -F FORWARD; iptables-nft -A FORWARD -p tcp -j DROP", "[]"},
		{"nft flush ruleset; iptables-legacy -A FORWARD -s 10.0.0.0/8 -j DROP; ip6tables-legacy -A FORWARD -p tcp -j DROP",
			"[]"},
		{"iptables-legacy -A FORWARD -j DROP; ip6tables-legacy -P FORWARD DROP",
			"[table ip filter chain FORWARD (iptables-legacy, a rule drops all) table ip6 filter chain FORWARD (iptables-legacy, policy drop)]"},
		{"iptables-legacy -A FORWARD -o cni0 -j ACCEPT; ip6tables-legacy -P FORWARD ACCEPT; ip6tables-legacy -A FORWARD -j REJECT",
			"[table ip6 filter chain FORWARD (iptables-legacy, a rule drops all)]"},
	} {
		nstest.RunIn(t, path, "sh", "-ec", step.do)
		f, err := AtForward(ns)
		if err != nil {
			t.Fatal(err)
		}
		drops, err := MayDrop(ns, f, "cni0")
		if got := fmt.Sprint(drops); err != nil || got != step.want {
			t.Errorf("%s: %s, %v; want %s", step.do, got, err, step.want)
		}
	}
	f, err := AtForward(ns)
	if err != nil {
		t.Fatal(err)
	}
	f.Chains = append(f.Chains, nft.BaseChain{Family: 1, Table: "gone", Name: "gone"})
	if drops, err := MayDrop(ns, f, ""); err != nil || len(drops) != 2 {
		t.Errorf("with a chain that is gone, and no link: %v, %v", drops, err)
	}
}
