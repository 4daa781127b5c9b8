package nft

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/kernel/kerneltest"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

func newNFT(t testing.TB) (*Conn, *kernel.NS) {
	t.Helper()
	ns := kerneltest.Open(t)
	n, err := Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	return n, ns
}

func apply(t testing.TB, n *Conn, table *Table) {
	t.Helper()
	_, fix, err := n.Diff(table)
	if err == nil {
		err = n.Commit(fix)
	}
	if err != nil {
		t.Fatal(err)
	}
	if drift, _, err := n.Diff(table); len(drift) > 0 || err != nil {
		t.Fatalf("after fixing: %v, %v", drift, err)
	}
	if ok, err := n.Intact(0, table); !ok || err != nil {
		t.Fatalf("after fixing: intact %v, %v", ok, err)
	}
}

// Chains are looked at once, however many elements we add, until somebody else makes a transaction.
func TestNFTIntactOnce(t *testing.T) {
	n, ns := newNFT(t)
	table := &Table{Family: unix.NFPROTO_INET, Name: "t"}
	set := &Set{Table: table, Name: "s", Key: []Type{Mark}}
	table.Sets = []*Set{set}
	table.Chains = []*Chain{{Name: "one", Rules: []*Rule{NewRule("drop").NotLo().Drop()}}, {Name: "two"}}
	apply(t, n, table)
	intact := func() (asked uint32, ok bool) {
		t.Helper()
		generation, err := n.Generation()
		if err != nil {
			t.Fatal(err)
		}
		before := n.c.Seq
		if ok, err = n.Intact(generation, table); err != nil {
			t.Fatal(err)
		}
		var b Batch
		b.Add(Elem{Set: set, Key: Key(n.c.Seq)})
		asked = n.c.Seq - before
		if err := n.CommitAt(&b, generation); err != nil {
			t.Fatal(err)
		}
		return asked, ok
	}
	for i, want := range []uint32{2, 0, 0} {
		if asked, ok := intact(); asked != want || !ok {
			t.Errorf("look %d: %d questions, want %d; intact %v", i, asked, want, ok)
		}
	}
	nstest.RunIn(t, ns.Path, "nft", "flush chain inet t one")
	if asked, ok := intact(); asked != 2 || ok {
		t.Errorf("after a flush: %d questions, intact %v", asked, ok)
	}
	apply(t, n, table)
	if asked, ok := intact(); asked != 2 || !ok {
		t.Errorf("after a rule of ours: %d questions, intact %v", asked, ok)
	}
}

// nft(8) prints every rule in the words that it would be written in.
func TestNFTRuleWords(t *testing.T) {
	n, ns := newNFT(t)
	table := &Table{Family: unix.NFPROTO_INET, Name: "t"}
	addrs := &Set{Table: table, Name: "addrs", Key: []Type{Addr}}
	addrs6 := &Set{Table: table, Name: "addrs6", Key: []Type{Addr6}}
	to := &Set{Table: table, Name: "to", Key: []Type{Addr, Proto, Service}}
	to6 := &Set{Table: table, Name: "to6", Key: []Type{Addr6, Proto, Service}}
	pair := &Set{Table: table, Name: "pair", Key: []Type{Addr, Addr}}
	pair6 := &Set{Table: table, Name: "pair6", Key: []Type{Addr6, Addr6}}
	exact := &Set{Table: table, Name: "exact", Key: []Type{Addr6, Proto, Service},
		Data: []Type{Addr6, Service}}
	any := &Set{Table: table, Name: "any", Key: []Type{Proto, Service}, Data: []Type{Addr, Service}}
	rule := func() *Rule { return NewRule("") }
	p := netip.MustParsePrefix
	words := []struct {
		rule *Rule
		want string
	}{
		{rule().Family(false).Prefix(false, false, p("10.1.2.0/24")).Drop(), "ip saddr 10.1.2.0/24 drop"},
		{rule().Family(false).Prefix(true, true, p("10.1.2.3/32")).Return(), "ip daddr != 10.1.2.3 return"},
		{rule().Family(false).Prefix(true, false, p("224.0.0.0/4")).Return(), "ip daddr 224.0.0.0/4 return"},
		{rule().Family(true).Prefix(false, true, p("fd00::/7")).Drop(), "ip6 saddr != fc00::/7 drop"},
		{rule().Family(true).Prefix(true, false, p("2001:db8::/33")).Drop(), "ip6 daddr 2001:db8::/33 drop"},
		{rule().Iifname(false, "eth0").Drop(), `iifname "eth0" drop`},
		{rule().Iifname(true, "eth*").Drop(), `iifname != "eth*" drop`},
		{rule().NotLo().Drop(), `iif != "lo" drop`},
		{rule().Mark(false, 2, 0xffffffff).Drop(), "meta mark 0x00000002 drop"},
		{rule().Mark(true, 2, 0xff).Drop(), "meta mark & 0x000000ff != 0x00000002 drop"},
		{rule().Proto(true, kernel.UDP).Drop(), "meta l4proto != udp drop"},
		{rule().Port(false, false, 53, 53).Drop(), "th sport 53 drop"},
		{rule().Port(true, false, 1024, 2047).Drop(), "th dport 1024-2047 drop"},
		{rule().Port(true, true, 1024, 2047).Drop(), "th dport != 1024-2047 drop"},
		{rule().ToLocal().Jump("u"), "fib daddr type local jump u"},
		{rule().Translated().Jump("u"), "ct status dnat jump u"},
		{rule().From(addrs).Jump("u"), "ip saddr @addrs jump u"},
		{rule().From(addrs6).Jump("u"), "ip6 saddr @addrs6 jump u"},
		{rule().To(to).Jump("u"), "ip daddr . meta l4proto . th dport @to jump u"},
		{rule().PublishedTo(to).Jump("u"),
			"ct direction original ip daddr . meta l4proto . ct original proto-dst @to jump u"},
		{rule().PublishedTo(to6).Jump("u"),
			"ct direction original ip6 daddr . meta l4proto . ct original proto-dst @to6 jump u"},
		{rule().Pair(pair).Return(), "ip saddr . ip daddr @pair return"},
		{rule().Pair(pair6).Return(), "ip6 saddr . ip6 daddr @pair6 return"},
		{rule().SNAT(netip.MustParseAddr("192.0.2.1")), "snat ip to 192.0.2.1"},
		{rule().SNAT(netip.MustParseAddr("2001:db8::1")), "snat ip6 to 2001:db8::1"},
	}
	c := &Chain{Name: "c"}
	for _, w := range words {
		c.Rules = append(c.Rules, w.rule)
	}
	nat := &Chain{Name: "pre", Type: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: -99, Rules: []*Rule{
		NewRule("one").DNAT(exact), NewRule("two").DNAT(any)}}
	post := &Chain{Name: "post", Type: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: 101,
		Rules: []*Rule{rule().Masquerade()}}
	table.Sets = []*Set{addrs, addrs6, to, to6, pair, pair6, exact, any}
	table.Chains = []*Chain{{Name: "u", Open: true}, c, nat, post}
	apply(t, n, table)
	out := nstest.RunIn(t, ns.Path, "nft", "list", "ruleset")
	for _, w := range words {
		if !strings.Contains(out, "\t"+w.want+" comment \" ") {
			t.Errorf("no rule %q", w.want)
		}
	}
	for _, w := range []string{
		"type nat hook prerouting priority dstnat + 1; policy accept;",
		`dnat ip6 to ip6 daddr . meta l4proto . th dport map @exact comment "one `,
		`meta nfproto ipv4 dnat ip to meta l4proto . th dport map @any comment "two `,
		"\tmasquerade comment",
	} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q", w)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// A transaction happens as a whole or not at all, and the error says which part could not be.
func TestNFTCommit(t *testing.T) {
	n, ns := newNFT(t)
	table := &Table{Family: unix.NFPROTO_INET, Name: "t"}
	set := &Set{Table: table, Name: "m", Key: []Type{Proto, Service}, Data: []Type{Addr, Service}}
	table.Sets = []*Set{set}
	apply(t, n, table)
	elem := func(port uint16) Elem {
		return Elem{Set: set, Key: Key(uint8(kernel.TCP), port), Data: Key(netip.MustParseAddr("10.0.0.1"), port),
			Comment: "port"}
	}
	var b Batch
	for port := range uint16(3000) {
		b.Add(elem(port))
	}
	if err := n.Commit(&b); err != nil {
		t.Fatal(err)
	}
	all, err := n.List(set)
	if err != nil || len(all) != 3000 {
		t.Fatalf("%d elements, %v", len(all), err)
	}
	listed := func() []string { // sorted, for a set that the kernel makes larger meanwhile has another order
		words := strings.FieldsFunc(nstest.RunIn(t, ns.Path, "nft", "list", "ruleset"),
			func(r rune) bool { return strings.ContainsRune("={,}\n", r) })
		for i := range words {
			words[i] = strings.TrimSpace(words[i])
		}
		slices.Sort(words)
		return words
	}
	before := listed()

	b = Batch{}
	b.Delete(elem(7))
	b.Add(elem(4000))
	b.Add(elem(8))
	err = n.Commit(&b)
	if !errors.Is(err, unix.EEXIST) || !strings.Contains(err.Error(), "nft add element inet t m { tcp . 4000 ") {
		t.Errorf("adding what exists: %v", err)
	}
	b = Batch{}
	b.Add(elem(4000))
	b.Delete(elem(5000))
	if err = n.Commit(&b); !errors.Is(err, unix.ENOENT) ||
		!strings.Contains(err.Error(), "nft delete element inet t m { tcp . 5000 }") {
		t.Errorf("deleting what does not exist: %v", err)
	}
	if after := listed(); !slices.Equal(after, before) || len(after) < 3000 {
		t.Error("a failed transaction changed something")
	}

	// Deleting and adding at one key in one transaction replaces.
	b = Batch{}
	b.Delete(elem(7))
	other := elem(7)
	other.Data, other.Comment = Key(netip.MustParseAddr("10.0.0.2"), uint16(9)), "other"
	b.Add(other)
	if err := n.Commit(&b); err != nil {
		t.Fatal(err)
	}
	found, err := n.Get(elem(5000), elem(7), elem(8))
	if err != nil || found[0] != nil || found[1] == nil || found[2] == nil {
		t.Fatalf("%v, %v", found, err)
	}
	if got := found[1].String() + " " + found[1].Comment; got != "inet t m { tcp . 7 : 10.0.0.2 . 9 } other" {
		t.Error(got)
	}
}

// In a table that is asleep all is there and nothing applies.
func TestNFTDormant(t *testing.T) {
	n, ns := newNFT(t)
	table := &Table{Family: unix.NFPROTO_INET, Name: "t"}
	table.Chains = []*Chain{{Name: "c", Type: "filter", Hook: unix.NF_INET_FORWARD}}
	apply(t, n, table)
	nstest.RunIn(t, ns.Path, "nft", "add table inet t { flags dormant; }")
	drift, fix, err := n.Diff(table)
	if err != nil || len(drift) != 1 || !strings.Contains(drift[0].Error(), "dormant") {
		t.Fatalf("%v, %v", drift, err)
	}
	if err := n.Commit(fix); err != nil {
		t.Fatal(err)
	}
	if drift, _, err := n.Diff(table); len(drift) > 0 || err != nil {
		t.Errorf("fixed: %v, %v", drift, err)
	}
	if s := nstest.RunIn(t, ns.Path, "nft", "list", "table", "inet", "t"); strings.Contains(s, "dormant") {
		t.Error(s)
	}
}

// What was changed behind our back is seen, said and fixed, and what we do not own stays.
func TestNFTDiff(t *testing.T) {
	n, ns := newNFT(t)
	table := &Table{Family: unix.NFPROTO_INET, Name: "t"}
	set := &Set{Table: table, Name: "s", Key: []Type{Ifname}}
	table.Sets = []*Set{set}
	table.Chains = []*Chain{{Name: "user", Open: true},
		{Name: "pre", Type: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: -300,
			Rules: []*Rule{NewRule("first").Jump("user"), NewRule("second").NotLo().Drop()}}}
	if drift, _, err := n.Diff(table); err != nil || len(drift) != 1 || drift[0].Error() != "nft table inet t is missing" {
		t.Errorf("%v, %v", drift, err)
	}
	apply(t, n, table)
	for _, c := range []struct{ do, want string }{
		{"flush chain inet t pre", `nft rule inet t pre "first `},
		{"insert rule inet t pre accept", "of another program"},
		{"add rule inet t pre jump user comment first", "of another program"},
		{"delete set inet t s", "nft set inet t s is missing"},
		{"delete chain inet t pre", "nft chain inet t pre is missing"},
		{"delete table inet t", "nft table inet t is missing"},
	} {
		nstest.RunIn(t, ns.Path, "nft", c.do)
		drift, fix, err := n.Diff(table)
		if err != nil || fix.Empty() || !strings.Contains(errors.Join(drift...).Error(), c.want) {
			t.Errorf("%s: %v, %v", c.do, drift, err)
		}
		if ok, err := n.Intact(0, table); err != nil || ok && !strings.Contains(c.do, "set") {
			t.Errorf("%s: intact %v, %v", c.do, ok, err)
		}
		apply(t, n, table)
	}
	nstest.RunIn(t, ns.Path, "nft", "add rule inet t user accept; add set inet t more { type mark; }")
	if drift, _, err := n.Diff(table); len(drift) > 0 || err != nil {
		t.Errorf("the administrator's part is no drift: %v, %v", drift, err)
	}
	for _, do := range []string{
		"delete table inet t; add table inet t; add set inet t s { type mark; }",
		"delete table inet t; add table inet t; add chain inet t pre { type filter hook prerouting priority 7; }",
		"delete table inet t; add table inet t; add chain inet t pre { type filter hook prerouting priority -300; policy drop; }",
	} {
		nstest.RunIn(t, ns.Path, "nft", do)
		drift, fix, err := n.Diff(table)
		if err != nil || !fix.Empty() || len(drift) != 1 || !strings.Contains(drift[0].Error(), "of another kind") {
			t.Errorf("%s: %v, %v", do, drift, err)
		}
	}
}

// A table is read once a generation, and anybody's transaction ends that.
func TestNFTDrift(t *testing.T) {
	n, ns := newNFT(t)
	table := &Table{Family: unix.NFPROTO_INET, Name: "t"}
	table.Chains = []*Chain{{Name: "pre", Type: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: -300,
		Rules: []*Rule{NewRule("drops").NotLo().Drop()}}}
	apply(t, n, table)
	look := func() (drift []error, messages uint32) {
		t.Helper()
		gen, err := n.Generation()
		if err != nil {
			t.Fatal(err)
		}
		was := n.c.Seq
		if drift, err = n.DiffOnce(table, gen); err != nil {
			t.Fatal(err)
		}
		return drift, n.c.Seq - was
	}
	if drift, messages := look(); len(drift) > 0 || messages == 0 {
		t.Errorf("at first: %v, with %d messages", drift, messages)
	}
	if drift, messages := look(); len(drift) > 0 || messages != 0 {
		t.Errorf("again: %v, with %d messages", drift, messages)
	}
	other := *table
	other.Chains = append(other.Chains[:1:1], &Chain{Name: "more", Open: true})
	gen, err := n.Generation()
	if err != nil {
		t.Fatal(err)
	}
	if drift, err := n.DiffOnce(&other, gen); err != nil || len(drift) != 1 {
		t.Errorf("what else should stand there: %v, %v", drift, err)
	}
	nstest.RunIn(t, ns.Path, "nft", "flush chain inet t pre")
	for range 2 {
		if drift, _ := look(); len(drift) != 1 {
			t.Errorf("after a flush: %v", drift)
		}
	}
	apply(t, n, table)
	if drift, _ := look(); len(drift) > 0 {
		t.Errorf("after fixing: %v", drift)
	}
}

func TestNFTSupported(t *testing.T) {
	n, _ := newNFT(t)
	table := &Table{Family: unix.NFPROTO_INET, Name: "none"}
	if err := n.Supported(table); err != nil {
		t.Error(err)
	}
	// Asked by a thread that has no rights here.
	weak, ns := newNFT(t)
	err := ns.Do(func() error {
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3},
			&make([]unix.CapUserData, 2)[0]); err != nil {
			return err
		}
		return weak.Supported(table)
	})
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("without CAP_NET_ADMIN: %v", err)
	}
}

func keySets() []*Set {
	table := &Table{Family: unix.NFPROTO_INET, Name: "t"}
	return []*Set{
		{Table: table, Name: "a", Key: []Type{Addr}},
		{Table: table, Name: "b", Key: []Type{Addr6, Proto, Service}},
		{Table: table, Name: "c", Key: []Type{Proto, Service, Mark}},
		{Table: table, Name: "d", Key: []Type{Ifname, Ether}},
		{Table: table, Name: "e", Key: []Type{Proto, Service}, Interval: true},
	}
}

// A key that was printed is read again as it was.
func TestNFTKeyText(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for i, e := range []Elem{
		{Key: Key(netip.MustParseAddr("10.1.2.3"))},
		{Key: Key(netip.MustParseAddr("2001:db8::1"), uint8(kernel.SCTP), uint16(65535))},
		{Key: Key(uint8(kernel.UDP), uint16(53), uint32(7))},
		{Key: Key("veth0", mac)},
		{Key: Key(uint8(kernel.UDP), uint16(8000)), KeyEnd: Key(uint8(kernel.UDP), uint16(8010))},
	} {
		e.Set = keySets()[i]
		text := e.KeyText()
		got, rest, ok := e.Set.CutKey(text + " the rest")
		if !ok || !slices.Equal(got.Key, e.Key) || !slices.Equal(got.KeyEnd, e.KeyEnd) || rest != "the rest" {
			t.Errorf("%q: %x, want %x; %q, %v", text, got, e, rest, ok)
		}
	}
}

func FuzzNFTKeyText(f *testing.F) {
	f.Add("10.1.2.3 tag")
	f.Add("2001:db8::1 . tcp . 80 tag")
	f.Add("udp . 53 . 0x00000000 tag")
	f.Add("veth0 . 02:00:00:00:00:01 tag")
	f.Add("veth0 . 0000000000001000 tag")
	f.Add("tcp . 8000-8010 tag")
	f.Add("\x00 . 02:00:00:00:00:01 tag")
	f.Fuzz(func(t *testing.T, line string) {
		for _, s := range keySets() {
			e, rest, ok := s.CutKey(line)
			if !ok {
				continue
			}
			text := e.KeyText()
			again, more, ok := s.CutKey(text + " " + rest)
			if !ok || !slices.Equal(again.Key, e.Key) || !slices.Equal(again.KeyEnd, e.KeyEnd) || more != rest {
				t.Errorf("%q printed as %q is %x, was %x", line, text, again, e)
			}
		}
	})
}

// A range is one element, is found by its two ends alone, and shares no key with another.
func TestNFTRanges(t *testing.T) {
	n, ns := newNFT(t)
	table := &Table{Family: unix.NFPROTO_INET, Name: "t"}
	s := &Set{Table: table, Name: "s", Key: []Type{Addr6, Proto, Service}, Data: []Type{Addr6},
		Interval: true}
	table.Sets = []*Set{s}
	table.Chains = []*Chain{{Name: "c", Rules: []*Rule{NewRule("").DNAT(s)}}}
	apply(t, n, table)
	host, to := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("fd00::5")
	ports := func(first, last uint16) Elem {
		return Elem{Set: s, Key: Key(host, uint8(kernel.TCP), first), KeyEnd: Key(host, uint8(kernel.TCP), last),
			Data:    Key(to),
			Comment: "mine"}
	}
	var b Batch
	b.Add(ports(8000, 8010))
	b.Add(ports(8011, 8011))
	if err := n.Commit(&b); err != nil {
		t.Fatal(err)
	}
	out := nstest.RunIn(t, ns.Path, "nft", "list", "ruleset")
	for _, want := range []string{"2001:db8::1 . tcp . 8000-8010 comment \"mine\" : fd00::5",
		"2001:db8::1 . tcp . 8011 comment", "flags interval",
		"dnat ip6 to ip6 daddr . meta l4proto . th dport map @s"} {
		if !strings.Contains(out, want) {
			t.Errorf("nft does not print %q:\n%s", want, out)
		}
	}
	found, err := n.Get(ports(8000, 8010), ports(8000, 8009), ports(8001, 8010), ports(8011, 8011), ports(8012, 8012))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false, false, true, false} {
		if (found[i] != nil) != want {
			t.Errorf("%d: found %v, want %v", i, found[i], want)
		}
	}
	if got := found[0].String(); got != "inet t s { 2001:db8::1 . tcp . 8000-8010 : fd00::5 }" {
		t.Error(got)
	}
	b = Batch{}
	b.Add(ports(8005, 8020))
	if err := n.Commit(&b); err == nil {
		t.Error("overlapping ranges were taken")
	}
	b = Batch{} // one makes room for the other in the same transaction
	b.Delete(ports(8000, 8010))
	b.Delete(ports(8011, 8011))
	b.Add(ports(8005, 8020))
	if err := n.Commit(&b); err != nil {
		t.Error(err)
	}
	if all, err := n.List(s); err != nil || len(all) != 1 || !slices.Equal(all[0].KeyEnd, ports(8005, 8020).KeyEnd) {
		t.Errorf("%v, %v", all, err)
	}
}
