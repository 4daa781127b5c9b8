package etcd

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

// blockOf is the pool n.0.0.0/25.
func blockOf(n byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{n}), 25) }

// setPools replaces the pools of the cluster.
func setPools(t *testing.T, s *Store, pools ...blocks.Pool) {
	t.Helper()
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := v.get(blocks.Key{Kind: blocks.ConfigKey})
	c := blocks.Config{Store: e.Value.Config.Store, Pools: pools}
	if err := errors.Join(c.Validate(), s.change(t.Context(), blocks.Configure(e, c))); err != nil {
		t.Fatal(err)
	}
}

// A node of two families claims a block of both in one transaction, or none.
func TestBothFamilies(t *testing.T) {
	s := startEtcd(t)
	six := blocks.Pool{Name: "six", Prefix: netip.MustParsePrefix("fd00:9::/122"), Bits: 122, Parts: 1}
	setPools(t, s, blocks.Pool{Name: "p", Prefix: blockOf(10), Bits: 26, Parts: 1}, six)
	m := member(t.Output(), s, "a", 1)
	m.Pools = nil
	claims := 0
	m.before = func(a blocks.Action) {
		if txn, is := a.(blocks.Txn); is && txn.Put[0].Key.Kind == blocks.BlockKey {
			claims++
		}
	}
	m.rest(t)
	if got := ranges(t, "a"); claims != 1 || len(got) != 2 || got[0].Addr().Is4() == got[1].Addr().Is4() {
		t.Errorf("%d claims, %v: want one of both families", claims, got)
	}

	other := member(t.Output(), s, "b", 1)
	other.Pools = nil
	other.rest(t)
	expect(t, "b", 0)
	g, err := grant.OfBoot("b")
	if err != nil || !strings.Contains(g.Missing, "no block is free in the pool six (fd00:9::/122)") {
		t.Errorf("%+v, %v", g, err)
	}
	v, err := s.Look(t.Context())
	if err != nil || len(v.All(blocks.BlockKey)) != 2 {
		t.Errorf("%v, %v: want the blocks of a alone", v.All(blocks.BlockKey), err)
	}
}

// A node claims of the pools in the order that it was told, and goes on with the next one when one has no block left.
func TestPoolsInOrder(t *testing.T) {
	s := startEtcd(t)
	one := func(name string, n byte) blocks.Pool {
		return blocks.Pool{Name: name, Prefix: blockOf(n), Bits: 25, Parts: 1}
	}
	setPools(t, s, one("x", 10), one("y", 11), one("z", 12))
	for _, c := range []struct {
		node string
		want netip.Prefix
	}{{"a", blockOf(11)}, {"b", blockOf(10)}} {
		m := member(t.Output(), s, c.node, 1)
		m.Pools = []string{"y", "x"}
		m.rest(t)
		if got := ranges(t, c.node); len(got) != 1 || got[0] != c.want {
			t.Errorf("node %s has %v, want %v", c.node, got, c.want)
		}
	}
}

// A node claims nothing of a pool that it must not use, and says why.
func TestUnfitPool(t *testing.T) {
	s := startEtcd(t)
	m := member(t.Output(), s, "a", 1)
	m.Fit = func(netip.Prefix) error { return errors.New("overlaps the route") }
	m.rest(t)
	expect(t, "a", 0)
	if g, err := grant.OfBoot("a"); err != nil || g.Missing != "the pool p (10.9.0.0/25) overlaps the route" {
		t.Errorf("%+v, %v", g, err)
	}
}

// A node that is drained gives back what no container has, and claims nothing.
func TestDrain(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "a", 1).rest(t)
	expect(t, "a", 1)
	j, err := (&host{network: "a"}).loadJournal()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Drain(t.Context(), j.Node, true); err != nil {
		t.Fatal(err)
	}
	drained := member(t.Output(), s, "a", 1)
	if drained.View, err = s.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	drained.rest(t)
	expect(t, "a", 0)
	if g, err := grant.OfBoot("a"); err != nil || !strings.Contains(g.Missing, "is drained") {
		t.Errorf("%+v, %v", g, err)
	}
	if err := s.Drain(t.Context(), j.Node, false); err != nil {
		t.Fatal(err)
	}
	member(t.Output(), s, "a", 1).rest(t)
	expect(t, "a", 1)
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"3.4.0", "3.4.0", false}, {"3.3.27", "3.4.0", true}, {"3.10.0", "3.4.0", false}, {"2.9", "3.4.0", true},
		{"3.4.0-rc.1", "3.4.0", false}} {
		if got := older(c.a, c.b); got != c.want {
			t.Errorf("%s is older than %s: %v", c.a, c.b, got)
		}
	}
}

// A node that is drained wants nothing, also if a container waits for a part of another node's block.
func TestDrainedWantsNothing(t *testing.T) {
	o := blocks.New("a", "", "x", blocks.Journal{Node: "n"}, nil)
	m := NewMember(nil, NewView(), "a", blocks.Host{Name: "a"})
	m.Least, m.wants["p"] = 1, true
	chain := []blocks.Pool{{Name: "p", Prefix: blockOf(10), Bits: 26, Parts: 1}}
	for _, drains := range []bool{false, true} {
		if drains {
			m.View.set(blocks.Key{Kind: blocks.DrainKey, Node: "n"}, blocks.Entry{})
		}
		if m.wantOf(o, chain, nil, nil); o.Wants("p") == drains {
			t.Errorf("drained: %v, and it wants blocks: %v", drains, o.Wants("p"))
		}
	}
}

// A node without a block of a family serves the other one when all pools of the former are closed. Blocks of these go back when no
// container has them. What says that a pool is closed speaks of a takeover only where containers are to be taken over.
func TestClosedFamily(t *testing.T) {
	s := startEtcd(t)
	six := blocks.Pool{Name: "six", Prefix: netip.MustParsePrefix("fd00:9::/122"), Bits: 122, Parts: 1}
	setPools(t, s, blocks.Pool{Name: "p", Prefix: blockOf(10), Bits: 26, Parts: 1}, six)
	says := func(node, why, hint string) {
		t.Helper()
		g, err := grant.OfBoot(node)
		if err != nil || !strings.Contains(g.Missing, why) || !strings.HasPrefix(g.Hint, hint) {
			t.Errorf("node %s: %q, %q, %v: want %q and %q", node, g.Missing, g.Hint, err, why, hint)
		}
	}
	rest := func(node string) {
		m := member(t.Output(), s, node, 1)
		m.Pools = nil
		m.rest(t)
	}
	for _, node := range []string{"a", "b"} {
		rest(node)
	}
	expect(t, "a", 2)
	expect(t, "b", 0)
	if _, err := s.RemovePool(t.Context(), "six"); err == nil || !strings.HasSuffix(err.Error(), "these nodes own blocks of it: a (1). Close it "+
		"(fairlead cluster pools close six), and repeat this when their containers with addresses of it have ended") {
		t.Error(err)
	}

	if _, err := s.ClosePool(t.Context(), "six", true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RemovePool(t.Context(), "six"); err == nil || strings.Contains(err.Error(), "Close it") ||
		!strings.Contains(err.Error(), "a (1). It is closed: a block goes back some minutes after its last container") {
		t.Error(err)
	}
	rest("b")
	expect(t, "b", 1)
	const isClosed = "the pool six (fd00:9::/122) is closed"
	says("b", isClosed, "`fairlead cluster pools open six` lets nodes claim any block of it")
	former := (&host{network: "former", leases: &disk.Store{}})
	dir, err := former.leaseDir()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "fd00:9::5"), []byte("x\r\neth0"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	rest("b")
	says("b", isClosed, "`fairlead cluster adopt --pool six` takes over the containers of the network former")

	rest("a")
	if got := ranges(t, "a"); len(got) != 1 || !got[0].Addr().Is4() {
		t.Errorf("%v: want that nothing is left of the pool", got)
	}
	if _, err := s.RemovePool(t.Context(), "six"); err != nil {
		t.Error(err)
	}
}

// A node that lacks a family serves the other one as soon as all pools of the former are closed, though it has claimed all before.
func TestFamilyCloses(t *testing.T) {
	s := startEtcd(t)
	setPools(t, s, blocks.Pool{Name: "p", Prefix: blockOf(10), Bits: 26, Parts: 1},
		blocks.Pool{Name: "six", Prefix: netip.MustParsePrefix("fd00:9::/122"), Bits: 122, Parts: 1})
	m := member(t.Output(), s, "a", 1)
	m.Pools = nil
	m.Fit = func(p netip.Prefix) error {
		if p.Addr().Is6() {
			return errors.New("overlaps the route")
		}
		return nil
	}
	m.rest(t)
	expect(t, "a", 0)
	if _, err := s.ClosePool(t.Context(), "six", true); err != nil {
		t.Fatal(err)
	}
	published := make(chan struct{}, 1)
	m = member(t.Output(), s, "a", 1)
	m.Pools, m.Published = nil, func() { notify(published) }
	m.follow(t)
	m.start(t)
	select {
	case <-published:
	case <-t.Context().Done():
	}
	expect(t, "a", 1)
}

// Of a block with more addresses than 64 bits count, all say how many it has.
func TestLargeBlock(t *testing.T) {
	s := startEtcd(t)
	setPools(t, s, blocks.Pool{Name: "p", Prefix: netip.MustParsePrefix("fd00::/8"), Bits: 8, Parts: 1})
	member(t.Output(), s, "a", 1).rest(t)
	expect(t, "a", 1)
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const want = "1329227995784915872903807060280344573"
	if pool, node := fmt.Sprint(v.Pools()[0].Usable), fmt.Sprint(v.Members()[0].Usable); pool != want || node != want {
		t.Errorf("the pool has %s and the node %s, want %s", pool, node, want)
	}
}
