package nft

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"golang.org/x/sys/unix"
)

// endingSets are a set, a map and a map of ranges, with an element each.
func endingSets(t *Table) (all []Elem) {
	addr := netip.MustParseAddr
	s := &Set{Table: t, Name: "s", Key: []Type{Ifname}}
	m := &Set{Table: t, Name: "m", Key: []Type{Proto, Service}, Data: []Type{Addr, Service}}
	r := &Set{Table: t, Name: "r", Key: []Type{Proto, Service}, Data: []Type{Addr}, Interval: true}
	t.Sets = []*Set{s, m, r}
	return []Elem{
		{Set: s, Key: Key("eth0"), Comment: "one"},
		{Set: m, Key: Key(byte(kernel.TCP), uint16(80)), Data: Key(addr("10.0.0.1"), uint16(8080)), Comment: "two"},
		{Set: r, Key: Key(byte(kernel.TCP), uint16(80)), KeyEnd: Key(byte(kernel.TCP), uint16(90)),
			Data:    Key(addr("10.0.0.1")),
			Comment: "three"},
	}
}

// needEnding skips where the kernel cannot make elements end.
func needEnding(t testing.TB, n *Conn) {
	t.Helper()
	if !n.CanEnd() {
		t.Skip("elements of nf_tables cannot end before Linux 6.12")
	}
}

// What ends is gone for whoever reads, at once, and its key is free: for the same, for something else, for a range that
// overlaps.
func TestNFTEnding(t *testing.T) {
	n, ns := newNFT(t)
	needEnding(t, n)
	table := &Table{Family: unix.NFPROTO_INET, Name: "t", Ends: true}
	all := endingSets(table)
	apply(t, n, table)
	for range 3 {
		var add, del Batch
		for _, e := range all {
			add.Add(e)
			del.Delete(e)
		}
		if err := n.Commit(&add); err != nil {
			t.Fatal(err)
		}
		ending, err := n.Ending(&del)
		if err != nil || ending == nil {
			t.Fatalf("ending: %v, %v", ending, err)
		}
		if err := n.Commit(ending); err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if left, err := n.List(e.Set); err != nil || len(left) > 0 {
				t.Errorf("listed: %v, %v", left, err)
			}
		}
		found, err := n.Get(all...)
		if err != nil || found[0] != nil || found[1] != nil || found[2] != nil {
			t.Errorf("got %v, %v", found, err)
		}
		all[1].Data = Key(netip.MustParseAddr("10.0.0.2"), uint16(8081))
		all[2].Key = Key(byte(kernel.TCP), uint16(70))
	}
	if err := (&kernel.World{Host: ns}).Finish(); err != nil {
		t.Error(err)
	}
	if s := nstest.RunIn(t, ns.Path, "nft", "list", "ruleset"); strings.Contains(s, "elements") {
		t.Errorf("left:\n%s", s)
	}
}

// A transaction that adds anything deletes, and so does one on a set that was not made for it.
func TestNFTEndingIsForDeletions(t *testing.T) {
	n, ns := newNFT(t)
	needEnding(t, n)
	for _, ends := range []bool{true, false} {
		table := &Table{Family: unix.NFPROTO_INET, Name: "t", Ends: ends}
		all := endingSets(table)
		apply(t, n, table)
		var b Batch
		b.Delete(all[0])
		if ending, err := n.Ending(&b); err != nil || (ending != nil) != ends {
			t.Errorf("of sets where elements can end %v: %v, %v", ends, ending, err)
		}
		b.Add(all[1])
		if ending, err := n.Ending(&b); err != nil || ending != nil {
			t.Errorf("with an addition: %v, %v", ending, err)
		}
		nstest.RunIn(t, ns.Path, "nft", "flush", "ruleset")
	}
}

// It is tried once a boot, and leaves no table. What is known is not tried again.
func TestEndsElements(t *testing.T) {
	n, ns := newNFT(t)
	file := filepath.Join(record.RunDir, "nft-ending")
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if EndsElements() {
		t.Error("known, and was never tried")
	}
	ends := n.CanEnd()
	if EndsElements() != ends {
		t.Errorf("it is %v, and not known", ends)
	}
	t.Cleanup(func() { os.Remove(file) })
	if s := nstest.RunIn(t, ns.Path, "nft", "list", "ruleset"); s != "" {
		t.Errorf("left:\n%s", s)
	}
	for known, want := range map[string]bool{"0": false, "1": true, "": ends, "rubbish": ends} {
		if err := os.WriteFile(file, []byte(known), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := n.CanEnd(); got != want {
			t.Errorf("with %q known: %v", known, got)
		}
	}
	if b, err := os.ReadFile(file); err != nil || len(b) != 1 {
		t.Errorf("written down: %q, %v", b, err)
	}
}
