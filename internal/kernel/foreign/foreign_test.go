package foreign

import (
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// What others have in the way of forwarding is found whoever made it, and its fingerprint changes with it and not
// with what we do ourselves.
func TestForeignForward(t *testing.T) {
	path := nstest.NewNS(t)
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	run := func(args ...string) { t.Helper(); nstest.RunIn(t, path, args[0], args[1:]...) }
	last := ""
	for _, step := range []struct {
		do      []string
		want    string
		changes bool
	}{
		{[]string{"true"}, "", true},
		{[]string{"nft", "add table inet fairlead; add chain inet fairlead forward { type filter hook forward priority 0; policy drop; }"}, "", false},
		{[]string{"iptables-nft", "-P", "FORWARD", "ACCEPT"}, "", true},
		{[]string{"iptables-nft", "-P", "FORWARD", "DROP"}, "ip filter FORWARD", true},
		{[]string{"iptables-nft", "-A", "FORWARD", "-j", "REJECT"}, "ip filter FORWARD", true},
		{[]string{"iptables-nft", "-P", "FORWARD", "ACCEPT"}, "ip filter FORWARD", true},
		{[]string{"iptables-nft", "-F", "FORWARD"}, "", true},
		{[]string{"nft", "add table ip6 x; add chain ip6 x y { type filter hook forward priority 7; }; add rule ip6 x y counter"}, "ip6 x y", true},
		{[]string{"nft", "add chain inet fairlead other"}, "ip6 x y", false},
		{[]string{"ip6tables-legacy", "-S"}, "ip6 x y, legacy iptables (ip6)", true},
		{[]string{"nft", "delete table ip6 x"}, "legacy iptables (ip6)", true},
	} {
		run(step.do...)
		f, err := AtForward(ns, "inet fairlead")
		if err != nil || f.String() != step.want {
			t.Errorf("%q: %v, %v; want %q", step.do, f, err, step.want)
		}
		print, err := Fingerprint(ns, "inet fairlead")
		if err != nil || (print != last) != step.changes {
			t.Errorf("%q: fingerprint %s after %s, %v; want a change: %v", step.do, print, last, err, step.changes)
		}
		last = print
	}
	if f, err := AtForward(ns); err != nil ||
		!slices.ContainsFunc(f.Chains, func(c nft.BaseChain) bool { return c.Table == "fairlead" }) {
		t.Errorf("nothing is skipped, and ours is not seen: %v, %v", f, err)
	}
}
