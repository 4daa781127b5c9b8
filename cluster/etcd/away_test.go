package etcd

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/spec"
)

// While etcd is away, containers get the addresses that the node has. After it came back, the node gets more.
func TestAway(t *testing.T) {
	s, dir, stopEtcd := startEtcdIn(t)
	took := away(t, s, dir, stopEtcd)
	t.Logf("in service again %v after etcd answered", took)
	check(t, s)
}

// BenchmarkAway reports how long it takes from the first answer of an etcd that was away until a node without free addresses
// has more.
func BenchmarkAway(b *testing.B) {
	s, dir, stopEtcd := startEtcdIn(b)
	for b.Loop() {
		b.ReportMetric(float64(away(b, s, dir, stopEtcd).Microseconds())/1000, "ms/in-service")
	}
}

// away stops etcd, gives containers all addresses that a node has, and starts etcd again.
func away(t testing.TB, s *Store, dir string, stopEtcd func()) (took time.Duration) {
	m := member(t.Output(), s, "a", 0)
	m.Spare, m.Idle = 40, time.Hour
	granted := make(chan int, 1000)
	m.before = func(a blocks.Action) {
		if a == nil {
			granted <- len(ranges(t, "a"))
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	for <-granted != 1 {
	}

	stopEtcd()
	leases := allocator("a")
	for n := range 61 {
		o := spec.Owner{Network: "a", ContainerID: strings.Repeat("x", n+1), IfName: "eth0"}
		if _, err := leases.Allocate(t.Context(), o); err != nil {
			t.Fatalf("address %d: %v", n, err)
		}
	}
	t.Cleanup(runEtcd(t, dir))
	dial(t, address)
	answers := time.Now()
	for <-granted != 2 {
	}
	took = time.Since(answers)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return took
}

// A journal that is older than the store's is one of a disk that was restored or copied: the node gets nothing.
func TestRestoredDisk(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "a", 1).rest(t)
	path := (&host{network: "a"}).journalPath()
	older, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	member(t.Output(), s, "a", 1).rest(t)
	expect(t, "a", 1)
	if err := os.WriteFile(path, older, 0o600); err != nil {
		t.Fatal(err)
	}
	member(t.Output(), s, "a", 1).rest(t)
	expect(t, "a", 0)
	if g, err := grant.OfBoot("a"); err != nil || !strings.Contains(g.Missing, "copied or restored") {
		t.Errorf("%+v, %v", g, err)
	}
}

// In a store that was restored, nobody claims until the administrator says so, and the nodes say what they have.
func TestRestoredStore(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "a", 1).rest(t)
	had := ranges(t, "a")
	j, err := (&host{network: "a"}).loadJournal()
	if err != nil {
		t.Fatal(err)
	}
	config, lost := blocks.Key{Kind: blocks.ConfigKey}, s.mustRead(t, blocks.Read{Mine: j.Node}).Entries[1].Key
	c := *s.mustRead(t, blocks.Read{}).Entries[0].Value.Config
	c.Store = "the former one"
	older := blocks.Txn{ // the store was copied before the claim
		Put:    []blocks.Pair{{Key: config, Value: blocks.Value{Config: &c}}},
		Delete: []blocks.Key{lost, {Kind: blocks.BlockKey, Pool: lost.Pool, Block: lost.Block}},
	}
	if _, err := s.Commit(t.Context(), older); err != nil {
		t.Fatal(err)
	}

	member(t.Output(), s, "b", 2).rest(t)
	expect(t, "b", 0)
	if awaited, err := s.Readopt(t.Context()); err != nil || len(awaited) != 1 || awaited[0].Name != "a" {
		t.Fatalf("%+v, %v: want that a is awaited", awaited, err)
	}
	member(t.Output(), s, "a", 2).rest(t)
	check(t, s)
	if got := ranges(t, "a"); !slices.Equal(got, had) {
		t.Errorf("a has %v, and had %v", got, had)
	}

	if awaited, err := s.Readopt(t.Context()); err != nil || len(awaited) > 0 {
		t.Fatalf("%+v, %v: want that nobody is awaited", awaited, err)
	}
	member(t.Output(), s, "b", 2).rest(t)
	expect(t, "b", 1)
	check(t, s)
}

// A node that lost its journal while containers have addresses says under which identifier etcd has its blocks. It goes on with
// them when that one is forgotten.
func TestLostJournal(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "a", 1).rest(t)
	h := &host{network: "a"}
	former, err := h.loadJournal()
	if err == nil {
		err = os.Remove(h.journalPath())
	}
	had, gerr := grant.OfBoot("a")
	if err = errors.Join(err, gerr); err != nil {
		t.Fatal(err)
	}
	m := member(t.Output(), s, "a", 1)
	m.View, err = s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.rest(t)
	if g, err := grant.OfBoot("a"); err != nil || !strings.Contains(g.Missing, "under its former identifier "+former.Node) {
		t.Errorf("%+v, %v", g, err)
	}
	if err := s.Forget(t.Context(), former.Node); err != nil {
		t.Fatal(err)
	}
	member(t.Output(), s, "a", 1).rest(t)
	if awaited, err := s.Readopt(t.Context()); err != nil || len(awaited) > 0 {
		t.Fatal(awaited, err)
	}
	member(t.Output(), s, "a", 1).rest(t)
	if g, err := grant.OfBoot("a"); err != nil || !slices.Equal(g.Ranges, had.Ranges) || g.Missing != "" {
		t.Errorf("%+v, %v: want the ranges %v", g, err, had.Ranges)
	}
	check(t, s)
}

// Where a store that was restored says that another node has a block, the node that has it says so, and is awaited until
// that one gave the block back.
func TestRestoredConflict(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "b", 2).rest(t)
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	older := blocks.Txn{} // the store was copied when b had all blocks
	for _, e := range append(v.All(blocks.BlockKey), v.All(blocks.MineKey)...) {
		older.Put = append(older.Put, e.Pair)
	}
	member(t.Output(), s, "b", 0).rest(t)
	member(t.Output(), s, "a", 1).rest(t)
	a, err := (&host{network: "a"}).loadJournal()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range s.mustRead(t, blocks.Read{Mine: a.Node}).Entries[1:] {
		older.Delete = append(older.Delete, e.Key)
	}
	c := *v.Config()
	c.Store = "the former one"
	older.Put = append(older.Put, blocks.Pair{Key: blocks.Key{Kind: blocks.ConfigKey}, Value: blocks.Value{Config: &c}})
	if _, err := s.Commit(t.Context(), older); err != nil {
		t.Fatal(err)
	}

	awaits := func(names ...string) {
		t.Helper()
		awaited, err := s.Readopt(t.Context())
		if err != nil || !slices.EqualFunc(awaited, names, func(m MemberInfo, name string) bool { return m.Name == name }) {
			t.Fatalf("%+v, %v: want that %q are awaited", awaited, err, names)
		}
	}
	member(t.Output(), s, "a", 1).rest(t)
	if g, err := grant.OfBoot("a"); err != nil || !strings.Contains(g.Missing, "another node has the block "+g.Ranges[0].String()) {
		t.Errorf("%+v, %v", g, err)
	}
	awaits("a", "b")
	member(t.Output(), s, "b", 0).rest(t)
	awaits("a")
	member(t.Output(), s, "a", 1).rest(t)
	check(t, s)
	awaits()
}

// A node keeps what it has while etcd has lost the cluster, so that it can say so when etcd is restored.
func TestLostCluster(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "a", 1).rest(t)
	if _, err := s.mustConnect(t).Delete(t.Context(), s.prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	member(t.Output(), s, "a", 1).rest(t)
	expect(t, "a", 1)
	member(t.Output(), s, "b", 1).rest(t)
	expect(t, "b", 0)
	if g, err := grant.OfBoot("b"); err != nil || !strings.Contains(g.Missing, "no cluster of this name") {
		t.Errorf("%+v, %v", g, err)
	}
}

// copyEtcd copies the data of an etcd, which ends and begins again.
func copyEtcd(t *testing.T, dir string, end func()) (copied string, stop func()) {
	t.Helper()
	end()
	copied = dir + "-copy"
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	stop = runEtcd(t, dir)
	dial(t, address)
	return copied, stop
}

// A view follows an etcd that was restored from a copy, also while its revision is below the former one.
func TestRestoredRevision(t *testing.T) {
	s, dir, stopEtcd := startEtcdIn(t)
	copied, stopEtcd := copyEtcd(t, dir, stopEtcd)

	view, drains := NewView(), make(chan string, 1000)
	go s.Follow(t.Context(), view, func(bool) {
		for _, e := range view.All(blocks.DrainKey) {
			drains <- e.Key.Node
		}
	}, func(err error) { t.Log(err) })
	until := func(node string) {
		t.Helper()
		for got := range drains {
			if got == node {
				return
			}
		}
	}
	drain := func(node string) {
		t.Helper()
		for s.Drain(t.Context(), node, true) != nil { // until etcd answers
			if t.Context().Err() != nil {
				t.Fatal("etcd does not answer")
			}
		}
	}
	for _, node := range []string{"a", "b", "c", "d"} {
		drain(node)
	}
	until("d")

	stopEtcd()
	t.Cleanup(runEtcd(t, copied))
	drain("e")
	until("e")
	if view.Drains("d") {
		t.Error("the view has what the copy has not")
	}
}

// An etcd that was restored with the identifier that it had says a revision below one that nodes know of. So a node that lost
// nothing claims nothing that another one has.
func TestRestoredIdentifier(t *testing.T) {
	s, dir, stopEtcd := startEtcdIn(t)
	pinned := netip.MustParseAddr("10.72.0.7")
	setPools(t, s, blocks.Pool{Name: "p", Prefix: blockOf(10), Bits: 26, Parts: 1},
		blocks.Pool{Name: "fixed", Prefix: netip.MustParsePrefix("10.72.0.0/24"), Bits: 32, Parts: 1, Pinned: true})
	want := grant.Want{Pins: []netip.Addr{pinned}}
	a, b := member(t.Output(), s, "a", 0), member(t.Output(), dial(t, address), "b", 0)
	a.Pools, b.Pools = nil, nil
	a.start(t)
	copied, stopEtcd := copyEtcd(t, dir, stopEtcd)

	endB := b.run(t)
	if why := refused(t, b, want); why != "" {
		t.Fatal(why)
	}
	endB()
	for _, node := range []string{"c", "d", "e", "f", "g", "h"} {
		if err := b.Store.Drain(t.Context(), node, true); err != nil {
			t.Fatal(err)
		}
	}
	a.sees(t, func(v *View) bool { return v.Drains("h") })

	stopEtcd()
	t.Cleanup(runEtcd(t, copied))
	for isKnown := false; !isKnown; {
		if refused(t, a, want) == "" {
			t.Fatalf("a got %v, which b has", pinned)
		}
		v, err := s.Look(t.Context())
		isKnown = err == nil && v.Restored()
	}
	b.rest(t)
	for {
		awaited, err := s.Readopt(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(awaited) == 0 {
			break
		}
	}
	for why := ""; !strings.Contains(why, "a container on the node b has"); why = refused(t, a, want) {
		t.Log(why)
	}
	check(t, s)
}

// What another program wrote in the place of a value is named by its key. Without the configuration nothing goes on.
func TestForeignValue(t *testing.T) {
	s := startEtcd(t)
	c, err := s.connect()
	if err != nil {
		t.Fatal(err)
	}
	leftOut := []blocks.Key{{Kind: blocks.NodeKey, Node: "x"}, {Kind: blocks.EpochKey, Node: "x"}}
	for _, key := range append(leftOut, blocks.Key{Kind: blocks.ConfigKey}) {
		former, err := c.Put(t.Context(), s.key(key), "{}", clientv3.WithPrevKV())
		if err != nil {
			t.Fatal(err)
		}
		v, err := s.Look(t.Context())
		if err == nil && slices.Contains(leftOut, key) {
			err = errors.New(strings.Join(v.Unread(), "\n"))
		}
		if want := "the value of " + s.key(key) + " is not of this version: {}"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if former.PrevKv != nil {
			_, err = c.Put(t.Context(), s.key(key), string(former.PrevKv.Value))
		} else {
			_, err = c.Delete(t.Context(), s.key(key))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
