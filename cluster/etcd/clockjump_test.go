package etcd

import (
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// While the clock of a machine jumps by a day, forth, back and forth, its node keeps all that it has, also what it does not need
// at the moment, and gets more. What rests goes on resting, and etcd knows which agents run. That holds for agents and an etcd
// that run meanwhile, and for those that start afterwards.
func TestClockJump(t *testing.T) {
	nstest.NeedMachine(t)
	s, dir, stopEtcd := startEtcdIn(t)
	gone := newAttaching(t, s, "gone")
	gone.end()
	if err := s.Forget(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	runs := newAttaching(t, s, "a")
	for round, by := range []time.Duration{24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
		had := ranges(t, "a")
		setClock(t, by)
		starts := newAttaching(t, s, "b")
		starts.attach(t, 10)
		runs.attach(t, 61*(round+1)+1) // 61 to a block: it needs one block more
		got := ranges(t, "a")
		for _, block := range had {
			if !slices.Contains(got, block) {
				t.Errorf("%v: the node gave %v back", by, block)
			}
		}
		if len(got) <= len(had) {
			t.Errorf("%v: the node has %v, and had %v", by, got, had)
		}
		isAlive(t, s, runs, starts)
		check(t, s)
		graves, err := s.mustConnect(t).Get(t.Context(), s.prefix+string(blocks.GraveKey), clientv3.WithPrefix())
		if err != nil || graves.Count != 1 {
			t.Errorf("%v: %v, %v: want the grave of a block", by, graves, err)
		}
		runs.detach(t)
		starts.detach(t)
		starts.end()

		stopEtcd()
		stopEtcd = runEtcd(t, dir)
		t.Cleanup(stopEtcd)
		dial(t, address)
		isAlive(t, s, runs)
	}
}

// setClock sets the clock of the machine forward or back.
func setClock(t *testing.T, by time.Duration) {
	t.Helper()
	to := unix.NsecToTimeval(time.Now().Add(by).UnixNano())
	if err := unix.Settimeofday(&to); err != nil {
		t.Fatal(err)
	}
}

// isAlive waits until etcd says that the agents of nodes run.
func isAlive(t *testing.T, s *Store, nodes ...*attaching) {
	t.Helper()
	for _, n := range nodes {
		j, err := (&host{network: n.Network}).loadJournal()
		if err != nil {
			t.Fatal(err)
		}
		for {
			v, err := s.Look(t.Context())
			if err == nil && v.has(blocks.Key{Kind: blocks.AliveKey, Node: j.Node}) {
				break
			}
			if t.Context().Err() != nil {
				t.Fatalf("etcd does not say that the agent of node %s runs: %v", n.Network, err)
			}
		}
	}
}
