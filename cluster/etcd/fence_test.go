package etcd

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/fence"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// newFenced is newTimed with a fence.
func newFenced(t *testing.T, node string, clock *atomic.Int64) *timed {
	t.Helper()
	host, err := kernel.Open("")
	if err != nil {
		t.Fatal(err)
	}
	w := &kernel.World{Host: host}
	t.Cleanup(func() { w.Close() })
	m := newTimed(t, node, clock)
	m.Fence = &fence.Fence{Network: node, World: w}
	return m
}

// elementsOf returns what nft(8) says of a set of a node's fence. It is empty if the set has no elements, or there is no fence.
func elementsOf(t *testing.T, node, set string) string {
	t.Helper()
	all := nstest.Run(t, "nft", "list", "ruleset")
	_, table, has := strings.Cut(all, "table inet fairlead-fence-"+node+" {")
	if !has {
		return ""
	}
	_, text, _ := strings.Cut(table, "set "+set+" {")
	text, _, _ = strings.Cut(text, "\t}\n")
	_, elements, _ := strings.Cut(text, "elements = ")
	return strings.TrimSpace(elements)
}

func fenceOnly(t *testing.T, s *Store, f blocks.Fence) {
	t.Helper()
	p := *mustPool(t, s, "p")
	p.Fence = f
	setPools(t, s, p)
}

// What a node has of a pool with a fence is behind it before containers get addresses. A container whose address others got
// stays behind it when the node returns, until it has ended.
func TestFencedNode(t *testing.T) {
	s := startEtcd(t)
	clock := oneTimedBlock(t, s)
	fenceOnly(t, s, blocks.Drop)
	a, b := newFenced(t, "a", clock), newTimed(t, "b", clock)
	a.rest(t)
	expect(t, "a", 1)
	if held, heard := elementsOf(t, "a", "held_ip"), elementsOf(t, "a", "heard_ip"); held != "{ 10.9.0.0/26 }" || !strings.Contains(heard, "expires 53m") {
		t.Errorf("held are %q and heard are %q", held, heard)
	}
	leases, x := allocator("a"), spec.Owner{Network: "a", ContainerID: "x", IfName: "eth0"}
	if _, err := leases.Allocate(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	b.follow()
	b.knowsOf(1)
	stop := b.run(t)
	b.pass()
	passTime(clock, time.Hour, b)
	if _, err := s.mustConnect(t).Delete(t.Context(), s.prefix+string(blocks.GraveKey), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	b.pass()
	expect(t, "b", 1)
	stop()

	lost := []netip.Addr{netip.MustParseAddr("10.9.0.2")}
	for range 2 { // also another agent
		newFenced(t, "a", clock).rest(t)
		g, err := grant.OfBoot("a")
		if err != nil || !slices.Equal(g.Lost, lost) || elementsOf(t, "a", "lost_ip") != "{ 10.9.0.2 }" || elementsOf(t, "a", "held_ip") != "{ 10.9.0.2 }" {
			t.Errorf("%+v, %v: want a lost address\n%s", g, err, nstest.Run(t, "nft", "list", "ruleset"))
		}
	}
	if err := leases.Release(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	newFenced(t, "a", clock).rest(t)
	if g, err := grant.OfBoot("a"); err != nil || len(g.Lost) > 0 {
		t.Errorf("%+v, %v: want no lost address", g, err)
	}
	if all := nstest.Run(t, "nft", "list", "ruleset"); all != "" {
		t.Errorf("want no table:\n%s", all)
	}
	check(t, s)
}

// After the deadline, the fence goes when etcd confirms a beat, and not before.
func TestFenceAfterContact(t *testing.T) {
	s := startEtcd(t)
	clock := oneTimedBlock(t, s)
	fenceOnly(t, s, blocks.Drop)
	clock.Add(-kept)
	newFenced(t, "a", clock).rest(t)
	heard := func() string { return elementsOf(t, "a", "heard_ip") }
	if heard() != "" || elementsOf(t, "a", "held_ip") == "" {
		t.Errorf("want all cut off:\n%s", nstest.Run(t, "nft", "list", "ruleset"))
	}
	clock.Add(kept)
	a := newFenced(t, "a", clock)
	idle := a.before
	a.before = func(act blocks.Action) {
		if txn, is := act.(blocks.Txn); is && slices.ContainsFunc(txn.Put, func(p blocks.Pair) bool { return p.Key.Kind == blocks.BeatKey }) &&
			heard() != "" {
			t.Error("the fence went before the beat")
		}
		idle(act)
	}
	a.rest(t)
	if !strings.Contains(heard(), "expires 53m") {
		t.Errorf("heard are %q", heard())
	}
}

// While a node cannot make the fence, containers get no address of the pool. The node tries again.
func TestNoFence(t *testing.T) {
	s := startEtcd(t)
	clock := oneTimedBlock(t, s)
	fenceOnly(t, s, blocks.Drop)
	a := newFenced(t, "a", clock)
	idle, tries := a.before, 0
	a.before = func(act blocks.Action) {
		if p, is := act.(blocks.Publish); is && len(p.Holdings) > 0 && len(p.Deadlines) > 0 {
			tries++
			if tries == 1 {
				nstest.Run(t, "nft", "add table inet fairlead-fence-a; add set inet fairlead-fence-a held_ip { type mark; }")
			} else if g, err := grant.OfBoot("a"); tries == 2 && (err != nil || len(g.Ranges) > 0) {
				t.Errorf("%+v, %v: want no range", g, err)
			}
		}
		idle(act)
	}
	a.start(t)
	a.await(a.failed)
	a.pass()
	expect(t, "a", 1)
	if held := elementsOf(t, "a", "held_ip"); held != "{ 10.9.0.0/26 }" || tries < 2 {
		t.Errorf("held are %q after %d tries", held, tries)
	}
}

// A pool gets a fence and loses it while the node has blocks of it.
func TestConfiguredFence(t *testing.T) {
	s := startEtcd(t)
	clock := oneTimedBlock(t, s)
	a := newFenced(t, "a", clock)
	a.follow()
	a.start(t)
	a.pass()
	for _, f := range []blocks.Fence{"", blocks.Drop, ""} {
		fenceOnly(t, s, f)
		a.pass()
		if held := elementsOf(t, "a", "held_ip"); (held == "") != (f == "") {
			t.Errorf("fence=%v: held are %q", f, held)
		}
	}
}
