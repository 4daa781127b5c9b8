package nft

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
)

// What other programs have put in the way of forwarded packets is seen whatever its family, and only that.
func TestBaseChains(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules")
	rules := `
		table inet foreign {
			set s { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 } }
			chain forward { type filter hook forward priority 0; policy drop; ip saddr @s accept; ct state established accept; };
			chain other { ip saddr 192.0.2.3 drop; };
		}
		table ip6 foreign { chain FORWARD { type filter hook forward priority filter - 5; }; }`
	if err := os.WriteFile(file, []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	path := nstest.NewNS(t)
	nstest.RunIn(t, path, "nft", "-f", file)
	ns, err := kernel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	nft, err := Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	got, err := nft.BaseChains()
	if err != nil {
		t.Fatal(err)
	}
	want := []BaseChain{
		{Family: 1, Table: "foreign", Name: "forward", Type: "filter", Hook: 2, Drops: true, Rules: 2},
		{Family: 10, Table: "foreign", Name: "FORWARD", Type: "filter", Hook: 2, Priority: -5},
	}
	slices.SortFunc(got, func(a, b BaseChain) int { return int(a.Family) - int(b.Family) })
	if !slices.Equal(got, want) {
		t.Errorf("%#v, want %#v", got, want)
	}
	if s := got[0].String(); s != "inet foreign forward" {
		t.Errorf("nft(8) would not say %q", s)
	}
	if n, err := nft.Elements(); n != 2 || err != nil {
		t.Errorf("%d elements, %v; want 2", n, err)
	}
}
