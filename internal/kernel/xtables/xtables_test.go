package xtables

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// eachIPT runs fn for both variants and families, each in a namespace of its own. A kernel that lacks one of them
// says so.
func eachIPT(t *testing.T, fn func(t *testing.T, ns *kernel.NS, x *Table)) {
	for _, v := range []Variant{NFT, Legacy} {
		for _, v6 := range []bool{false, true} {
			ns, err := kernel.Open(nstest.NewNS(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(ns.Close)
			x := NewTable(ns, v, v6, "nat")
			t.Run(x.command(""), func(t *testing.T) {
				out, err := exec.Command("nsenter", "--net="+nstest.NewNS(t), x.command(""), "-t", "nat", "-L",
					"-n").CombinedOutput()
				if err != nil {
					nstest.Skip(t, string(out))
				}
				fn(t, ns, x)
			})
		}
	}
}

const oddComment = `name: "n\et" id: "c'1" # $x`

func TestIPTables(t *testing.T) {
	eachIPT(t, func(t *testing.T, ns *kernel.NS, x *Table) {
		ctx := t.Context()
		addr, other := "10.1.2.3", "10.1.2.4/32"
		if x.V6 {
			addr, other = "fd00::3", "fd00::4/128"
		}
		if there, err := x.exists(); there || err != nil {
			t.Fatalf("in an empty namespace: %v, %v", there, err)
		}
		if all, err := x.Save(ctx); len(all) != 0 || err != nil {
			t.Fatalf("saved of an empty namespace: %v, %v", all, err)
		}
		if there, err := x.exists(); there || err != nil {
			t.Fatalf("asking has made the table: %v, %v", there, err)
		}

		jump := NewRule("POSTROUTING", "-s", addr, "-m", "comment", "--comment", oddComment, "-j", "MINE")
		masq := NewRule("MINE", "!", "-d", other, "-m", "comment", "--comment", "plain", "-j", "MASQUERADE")
		accept := NewRule("MINE", "-d", other, "-j", "ACCEPT")
		if err := x.Apply(ctx, ":MINE -", ":OTHER -", accept.Append(), masq.Append(), jump.Insert()); err != nil {
			t.Fatal(err)
		}
		if there, err := x.Chains("MINE", "MISSING", "OTHER"); !slices.Equal(there, []bool{true, false, true}) || err != nil {
			t.Errorf("chains: %v, %v", there, err)
		}
		if owners, err := owners(ns, x.V6, "nat"); len(owners) != 1 || owners[0].Variant != x.Variant || err != nil {
			t.Errorf("owners: %v, %v", owners, err)
		}
		if of, err := TableOf(ns, x.V6, "nat"); err != nil || of.Variant != x.Variant {
			t.Errorf("the table is of %v, %v", of, err)
		}
		if missing, err := x.Missing(ctx, jump, masq, accept); len(missing) != 0 || err != nil {
			t.Errorf("missing: %v, %v", missing, err)
		}
		gone := NewRule("MINE", "-d", other, "-j", "RETURN")
		away := NewRule("MISSING", "-j", "ACCEPT")
		if missing, err := x.Missing(ctx, gone, masq, away, accept, gone); err != nil || len(missing) != 3 ||
			!missing[0].Same(away) || !missing[1].Same(gone) || !missing[2].Same(gone) {
			t.Errorf("missing: %v, %v", missing, err)
		}
		saved, err := x.Save(ctx)
		if err != nil || len(saved["MINE"]) != 2 || len(saved["POSTROUTING"]) != 1 {
			t.Fatalf("saved: %v, %v", saved, err)
		}
		if err := x.Apply(ctx, saved["MINE"][0].Delete(), saved["MINE"][0].Append()); err != nil {
			t.Errorf("what was saved is not understood: %v", err)
		}
		rules, err := x.List(ctx, "POSTROUTING", "MINE", "MISSING")
		if err != nil || len(rules) != 3 {
			t.Fatalf("listed: %v, %v", rules, err)
		}
		r := rules[0]
		if r.Chain != "POSTROUTING" || r.Jump != "MINE" || r.Comment != oddComment || r.Src.String() != addr+
			map[bool]string{false: "/32", true: "/128"}[x.V6] || r.Dst.IsValid() {
			t.Errorf("the jump was read as %+v", r)
		}
		if r := rules[2]; r.Jump != "ACCEPT" || r.Dst.String() != other || r.Comment != "" {
			t.Errorf("the last rule was read as %+v", r)
		}
		if r := rules[1]; r.Jump != "MASQUERADE" || r.Dst.IsValid() || r.Comment != "plain" {
			t.Errorf("the second rule was read as %+v", r)
		}

		// All or nothing.
		before := state(t, ns, x)
		err = x.Apply(ctx, accept.Append(), NewRule("MINE", "-s", other, "-j", "NOWHERE").Append())
		if after := state(t, ns, x); err == nil || after != before {
			t.Errorf("half of a change: %v\n%s", err, after)
		}
		var failed *Error
		if err := x.Apply(ctx, "-N MINE"); !errors.As(err, &failed) || failed.Line != 2 ||
			!strings.Contains(err.Error(), x.command("restore")) {
			t.Errorf("%v", err)
		}
		if err := x.Remove(ctx, rules[:1], []string{"MINE", "OTHER"}); err != nil {
			t.Fatal(err)
		}
		if after := state(t, ns, x); strings.Contains(after, "MINE") || strings.Contains(after, "OTHER") {
			t.Errorf("left:\n%s", after)
		}
	})
}

func state(t *testing.T, ns *kernel.NS, x *Table) string {
	t.Helper()
	var keep []string
	for line := range strings.Lines(nstest.RunIn(t, ns.Path, x.command("save"), "-t", x.Table)) {
		if !strings.HasPrefix(line, "#") {
			keep = append(keep, line)
		}
	}
	return strings.Join(keep, "")
}

// Chains are found among many, each of several rules.
func TestLegacyChains(t *testing.T) {
	eachIPT(t, func(t *testing.T, ns *kernel.NS, x *Table) {
		var lines, names []string
		for i := range 500 {
			name := fmt.Sprintf("A-CHAIN-OF-28-CHARACTERS-%03d", i)
			names = append(names, name)
			lines = append(lines, ":"+name+" -")
			lines = append(lines, NewRule(name, "-m", "comment", "--comment", "ERROR", "-j", "ACCEPT").Append())
		}
		if err := x.Apply(t.Context(), lines...); err != nil {
			t.Fatal(err)
		}
		there, err := x.Chains(append(names, "ERROR", "ACCEPT", "POSTROUTING-")...)
		if err != nil || slices.Contains(there[:500], false) || slices.Contains(there[500:], true) {
			t.Errorf("of 500 chains some are not found, or some that are not there are: %v", err)
		}
	})
}

// A runtime's PATH may lack sbin.
func TestIPTablesWithoutPath(t *testing.T) {
	if _, err := plainVariant(false); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "")
	if v, err := plainVariant(true); err != nil || v == 0 {
		t.Errorf("%v, %v", v, err)
	}
}

// A program that hangs, and the one that it started with it, are not waited for without end: this test ends.
func TestIPTablesThatHangs(t *testing.T) {
	path := t.TempDir() + "/iptables"
	held := path + ".held" // what was started ends with the test
	if err := unix.Mkfifo(held, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(held, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.WriteFile(path, []byte("#!/bin/sh\ncat "+held+"\n:\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	variantOf(path)
}

// What is read without words is what the words say.
func TestIPTRead(t *testing.T) {
	eachIPT(t, func(t *testing.T, ns *kernel.NS, x *Table) {
		to, any := "10.1.2.3:80", "10.1.2.3"
		if x.V6 {
			to, any = "[fd00::3]:80", "fd00::3"
		}
		rules := []Rule{
			NewRule("A", "-p", "tcp", "-m", "multiport", "--dports", "80,8000:8010,443", "-j", "RETURN"),
			NewRule("A", "-p", "udp", "-m", "udp", "--dport", "53", "-j", "DNAT", "--to-destination", to),
			NewRule("A", "-p", "tcp", "-m", "tcp", "--dport", "53:54", "-j", "DNAT", "--to-destination", any),
		}
		lines := []string{":A -"}
		for _, r := range rules {
			lines = append(lines, r.Append())
		}
		if err := x.Apply(t.Context(), lines...); err != nil {
			t.Fatal(err)
		}
		got, err := x.List(t.Context(), "A")
		if err != nil || len(got) != len(rules) {
			t.Fatalf("%v, %v", got, err)
		}
		for i, want := range rules {
			g := got[i]
			if g.Proto != want.Proto || !slices.Equal(g.Ports, want.Ports) || g.To != want.To || g.Jump != want.Jump {
				t.Errorf("%v was read as %+v", want, g)
			}
		}
	})
}

func TestIPTQuoting(t *testing.T) {
	for _, words := range [][]string{{"-m", "comment", "--comment", oddComment}, {`a b`, `"`, `\`, `x"y`, ``, `!`, `tab	tab`}} {
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = quote(w)
		}
		if got := split(strings.Join(quoted, " ")); !slices.Equal(got, words) {
			t.Errorf("%q became %q", words, got)
		}
	}
}
