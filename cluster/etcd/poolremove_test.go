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
