package etcd

import (
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// A pool that is closed runs empty, though its nodes need a block each, and then it can be removed. A block that is claimed
// meanwhile is in the way.
func TestRemovePool(t *testing.T) {
	s := startEtcd(t)
	rest := func() {
		m := member(t.Output(), s, "a", 1)
		m.Pools = []string{"p", "large"}
		m.rest(t)
	}
	rest()
	before, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	config := before.get(blocks.Key{Kind: blocks.ConfigKey})
	without := blocks.Configure(config, *config.Value.Config)
	without.If = append(without.If, blocks.Unused("p")...)
	if r, err := s.Commit(t.Context(), without); err != nil || r.Done {
		t.Errorf("%+v, %v: want that the block is in the way", r, err)
	}
	without.If = append(slices.Clone(without.If[:1]), blocks.Unused("large")...)
	if r, err := s.Commit(t.Context(), without); err != nil || !r.Done {
		t.Errorf("%+v, %v: want that a pool without blocks can go", r, err)
	}

	if _, err := s.RemovePool(t.Context(), "p"); err == nil {
		t.Error("a pool with a block was removed")
	}
	if _, err := s.ClosePool(t.Context(), "p", true); err != nil {
		t.Fatal(err)
	}
	rest()
	if got := ranges(t, "a"); len(got) != 1 || got[0].Addr().String() < "10.128" {
		t.Errorf("the node has %v: want a block of the open pool", got)
	}
	v, err := s.RemovePool(t.Context(), "p")
	if err != nil || len(v.Pools()) != 1 {
		t.Fatal(v, err)
	}
	if _, err := s.RemovePool(t.Context(), "large"); err == nil {
		t.Error("the last pool was removed")
	}
	rest()
	expect(t, "a", 1)
}

// A pool whose name has a slash, which a former release took, gives blocks like others, and can be removed.
func TestSlash(t *testing.T) {
	s := startEtcd(t)
	pools := []blocks.Pool{{Name: "Mo", Prefix: blockOf(10), Bits: 26, Parts: 1}, {Name: "Mo/re", Prefix: blockOf(11), Bits: 26, Parts: 1}}
	setPools(t, s, pools...)
	m := member(t.Output(), s, "a", 1)
	m.Pools = []string{"Mo/re"}
	m.rest(t)
	expect(t, "a", 1)
	v, err := s.Look(t.Context())
	if err != nil || len(v.Unread()) > 0 || v.Pools()[1].Owned != 1 {
		t.Errorf("%v, %v: want that the block is known", v.Unread(), err)
	}
	m = member(t.Output(), s, "a", 1)
	m.Pools = []string{"Mo"}
	m.rest(t)
	if _, err := s.RemovePool(t.Context(), "Mo/re"); err != nil {
		t.Error(err)
	}
}
