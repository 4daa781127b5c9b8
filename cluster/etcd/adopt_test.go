package etcd

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// adopts has a member adopt blocks, after the leases in them as the command adds them. It returns why it does not.
func (m *Member) adopts(t *testing.T, texts ...string) string {
	t.Helper()
	all := prefixes(texts...)
	book := &ipam.Book{}
	for _, block := range all {
		book.Leases = append(book.Leases, ipam.Lease{Address: block.Addr().Next().Next(), ContainerID: m.Network + block.Addr().String(), IfName: "eth0"})
	}
	if _, err := m.Leases.Import(t.Context(), m.Network, book, true, false); err != nil {
		t.Fatal(err)
	}
	err := m.Adopt(t.Context(), all, false)
	var refused *RefusedAdoption
	if err != nil && !errors.As(err, &refused) {
		t.Fatal(err)
	}
	if err == nil {
		return ""
	}
	return err.Error() + ". " + refused.Hint
}

// newAdopting is a cluster with a closed pool, and the member of a node that has nothing.
func newAdopting(t *testing.T, nodes ...string) (s *Store, list []*Member) {
	s = startEtcd(t)
	setPools(t, s, blocks.Pool{Name: "p", Prefix: netip.MustParsePrefix("10.9.0.0/24"), Bits: 28, Parts: 4, Closed: true})
	for _, node := range nodes {
		m := member(t.Output(), s, node, 1)
		m.Reserve = 1
		list = append(list, m)
		m.start(t)
	}
	for _, m := range list {
		m.sees(t, func(v *View) bool { return len(v.All(blocks.NodeKey)) == len(nodes) })
	}
	return s, list
}

// A node adopts the blocks in which its containers have addresses, all or none, and no other block while the pool is closed.
// It keeps them when it starts anew. With dry, nothing is claimed.
func TestAdopt(t *testing.T) {
	s, list := newAdopting(t, "a", "b")
	a, b := list[0], list[1]
	if err := a.Adopt(t.Context(), prefixes("10.9.0.16/28"), true); err != nil {
		t.Error(err)
	}
	expect(t, "a", 0)
	if g, err := grant.OfBoot("a"); err != nil || !strings.Contains(g.Missing, "the pool p (10.9.0.0/24) is closed") {
		t.Errorf("%+v, %v: want that the pool is closed", g, err)
	}
	if why := a.adopts(t, "10.9.0.16/28", "10.9.0.64/28"); why != "" {
		t.Fatal(why)
	}
	for range 2 { // and again, which changes nothing
		if got := ranges(t, "a"); !slices.Equal(got, prefixes("10.9.0.16/28", "10.9.0.64/28")) {
			t.Fatal(got)
		}
		if why := a.adopts(t, "10.9.0.64/28"); why != "" {
			t.Fatal(why)
		}
	}

	for len(b.View.All(blocks.BlockKey)) < 2 && t.Context().Err() == nil { // dry knows what the watch told
	}
	for _, dry := range []bool{true, false} {
		err := b.Adopt(t.Context(), prefixes("10.9.0.32/28", "10.9.0.64/28"), dry)
		if err == nil || err.Error() != "10.9.0.64/28: node a owns it, or a part of it" {
			t.Errorf("%v: want who owns one of the two", err)
		}
	}
	expect(t, "b", 0)
	for block, want := range map[string]string{"10.10.0.0/28": "it is of no pool", "10.9.0.0/27": "it is of no pool"} {
		if why := b.adopts(t, block); !strings.Contains(why, want) {
			t.Errorf("%s: %q, want %q", block, why, want)
		}
	}
	b.Fit = func(netip.Prefix) error { return errors.New("overlaps the network 10.9.0.0/24 of link cni0") }
	if why := b.adopts(t, "10.9.0.32/28"); !strings.Contains(why, "10.9.0.32/28: it overlaps the network 10.9.0.0/24 of link cni0. Containers") {
		t.Error(why)
	}
	check(t, s)
	v, err := s.Look(t.Context())
	if err != nil || len(v.All(blocks.BlockKey)) != 2 {
		t.Errorf("%v, %v: want the blocks of a alone", v.All(blocks.BlockKey), err)
	}

	if _, err := s.ClosePool(t.Context(), "q", false); err == nil || err.Error() != `the cluster has no pool "q"; it has p (10.9.0.0/24)` {
		t.Error(err)
	}
	if _, err := s.ClosePool(t.Context(), "p", false); err != nil {
		t.Error(err)
	}
}

// What a node adopted stays its own over restarts, as long as containers have addresses of it, and goes back then. No address
// of it is given twice.
func TestAdoptKept(t *testing.T) {
	s := startEtcd(t)
	m := member(t.Output(), s, "a", 1)
	end := m.run(t)
	if why := m.adopts(t, "10.9.0.0/26", "10.9.0.64/26"); why != "" {
		t.Fatal(why)
	}
	end()
	again := member(t.Output(), s, "a", 0)
	again.rest(t)
	expect(t, "a", 2)
	leases := allocator("a")
	given, err := leases.Allocate(t.Context(), spec.Owner{Network: "a", ContainerID: "new", IfName: "eth0"})
	if err != nil || given.IPs[0].Address.Addr() == netip.MustParseAddr("10.9.0.2") {
		t.Error(given, err)
	}
	for _, id := range []string{"a10.9.0.0", "a10.9.0.64", "new"} {
		if err := leases.Release(t.Context(), spec.Owner{Network: "a", ContainerID: id, IfName: "eth0"}); err != nil {
			t.Fatal(err)
		}
	}
	member(t.Output(), s, "a", 0).rest(t)
	expect(t, "a", 0)
}

// Of two nodes that adopt one block at once, one gets it, and the other gets nothing and hears who has it.
func TestAdoptRace(t *testing.T) {
	s, list := newAdopting(t, "a", "b")
	block := func(n int) string {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, 0, byte(16 * n)}), 28).String()
	}
	for n := range 5 {
		shared := block(3 * n)
		whys := make([]string, len(list))
		var both sync.WaitGroup
		for i, m := range list {
			both.Go(func() { whys[i] = m.adopts(t, block(3*n+1+i), shared) })
		}
		both.Wait()
		won := slices.Index(whys, "")
		if won < 0 || whys[1-won] == "" {
			t.Fatalf("%q: want one that has %s, and one that has not", whys, shared)
		}
		if want := shared + ": node " + list[won].Network + " owns it"; !strings.Contains(whys[1-won], want) {
			t.Errorf("%q: want %q", whys[1-won], want)
		}
		check(t, s)
		v, err := s.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if owned := len(v.All(blocks.BlockKey)); owned != 2*(n+1) {
			t.Errorf("%d blocks are owned, want the two of each of %d adoptions", owned, n+1)
		}
	}
}
