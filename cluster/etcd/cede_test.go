package etcd

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/spec"
)

// follow keeps the member's view as etcd is, and tells the member.
func (m *Member) follow(t *testing.T) {
	go m.Store.Follow(t.Context(), m.View, func(freed bool) {
		if freed {
			m.Freed()
		}
		m.ViewChanged()
	}, func(err error) { t.Log(err) })
}

// A node without an address gets a part of another node's block when no block is free, and the other node gets it back when
// nobody needs it.
func TestCede(t *testing.T) {
	s := startEtcd(t)
	p := blocks.Pool{Name: "p", Prefix: netip.MustParsePrefix("10.9.0.0/26"), Bits: 26, Parts: 4}
	setPools(t, s, p)
	a, b := member(t.Output(), s, "a", 1), member(t.Output(), s, "b", 0)
	for _, m := range []*Member{a, b} {
		m.Idle = time.Hour
		m.follow(t)
	}
	a.start(t)
	if err := a.Ask(t.Context(), grant.Want{}); err != nil {
		t.Fatal(err)
	}
	expect(t, "a", 1)
	owner := func(node string, n int) spec.Owner {
		return spec.Owner{Network: node, ContainerID: fmt.Sprint("x", n), IfName: "eth0"}
	}
	if _, err := allocator("a").Allocate(t.Context(), owner("a", 0)); err != nil {
		t.Fatal(err)
	}

	b.start(t)
	asked := time.Now()
	for len(ranges(t, "b")) == 0 { // until a has said that its agent runs, b knows nobody who could give something
		if err := b.Ask(t.Context(), grant.Want{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%v after the first call, b has %v, and a has %v", time.Since(asked), ranges(t, "b"), ranges(t, "a"))
	if got := ranges(t, "b"); len(got) != 1 || got[0] != netip.MustParsePrefix("10.9.0.48/28") {
		t.Errorf("%v: want the last part of the block", got)
	}
	expect(t, "a", 3)
	check(t, s)
	if _, err := allocator("b").Allocate(t.Context(), owner("b", 0)); err != nil {
		t.Fatal(err)
	}
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range v.Nodes() {
		want := map[string]string{"a": "[10.9.0.1]", "b": "[10.9.0.49]"}[n.Name]
		if got := fmt.Sprint(n.Gateways); got != want {
			t.Errorf("node %s has %s, want %s", n.Name, got, want)
		}
	}

	if err := allocator("b").Release(t.Context(), owner("b", 0)); err != nil {
		t.Fatal(err)
	}
	j, err := (&host{network: "b"}).loadJournal()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Drain(t.Context(), j.Node, true); err != nil {
		t.Fatal(err)
	}
	for len(ranges(t, "a")) != 1 {
		if t.Context().Err() != nil {
			t.Fatal("a does not get the part back")
		}
	}
	expect(t, "b", 0)
	check(t, s)
}

// A node that joins when no block is free gets a part of one, and so does one of both families.
func TestCedeToNewNode(t *testing.T) {
	s := startEtcd(t)
	setPools(t, s, blocks.Pool{Name: "p", Prefix: netip.MustParsePrefix("10.9.0.0/26"), Bits: 26, Parts: 4},
		blocks.Pool{Name: "six", Prefix: netip.MustParsePrefix("fd00:9::/122"), Bits: 122, Parts: 2})
	a, b := member(t.Output(), s, "a", 1), member(t.Output(), s, "b", 1)
	for _, m := range []*Member{a, b} {
		m.Pools, m.Idle = nil, time.Hour
		m.follow(t)
	}
	a.start(t)
	a.sees(t, func(v *View) bool { return len(v.All(blocks.BlockKey)) == 2 && len(v.All(blocks.AliveKey)) == 1 })
	b.start(t)
	for len(ranges(t, "b")) != 2 {
		if t.Context().Err() != nil {
			t.Fatal("b gets no parts")
		}
	}
	check(t, s)
	v, err := s.Look(t.Context())
	if err != nil || len(v.All(blocks.MineKey)) != 4 {
		t.Errorf("%v, %v: want parts of two blocks for two nodes", v.All(blocks.MineKey), err)
	}
}

// A node that got a part of a block of one family claims a block of the other one alone, though it wants more of the first one, of
// which no block is free.
func TestCedeThenClaim(t *testing.T) {
	s := startEtcd(t)
	setPools(t, s, blocks.Pool{Name: "p", Prefix: netip.MustParsePrefix("10.9.0.0/24"), Bits: 26, Parts: 4},
		blocks.Pool{Name: "six", Prefix: netip.MustParsePrefix("fd00:9::/122"), Bits: 122, Parts: 4})
	a, b := member(t.Output(), s, "a", 1), member(t.Output(), s, "b", 1)
	for _, m := range []*Member{a, b} {
		m.Pools, m.Idle, m.Spare = nil, time.Hour, -1
		m.follow(t)
	}
	a.start(t)
	a.sees(t, func(v *View) bool { return len(v.All(blocks.BlockKey)) == 2 && len(v.All(blocks.AliveKey)) == 1 })
	b.start(t)
	for len(ranges(t, "b")) != 2 {
		if t.Context().Err() != nil {
			t.Fatal("b has no addresses of both families")
		}
	}
	check(t, s)
	if err := b.Ask(t.Context(), grant.Want{}); err != nil {
		t.Error(err)
	}
	g, err := grant.OfBoot("b")
	if err != nil || !strings.Contains(g.Missing, "no block is free in the pool six (fd00:9::/122), of which this node has 14 addresses") {
		t.Errorf("%+v, %v: want why there is no more", g, err)
	}
}
