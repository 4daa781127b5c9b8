package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/spec"
)

// attach gives so many containers addresses of a member. It returns how often it had to ask for more.
func attach(ctx context.Context, t testing.TB, m *Member, containers int) (asks int64) {
	leases := allocator(m.Network)
	for c := range containers {
		o := spec.Owner{Network: m.Network, ContainerID: fmt.Sprint("x", c), IfName: "eth0"}
		for _, err := leases.Allocate(ctx, o); err != nil; _, err = leases.Allocate(ctx, o) {
			asks++
			if err := m.Ask(ctx, grant.Want{}); err != nil {
				t.Error(err)
				return asks
			}
		}
	}
	return asks
}

// A node that starts, and attaches 100 containers at once, writes to etcd at most five times: a lease, an entry of which all
// that it says of itself is a part, and claims.
func TestWrites(t *testing.T) {
	s := startEtcd(t)
	before := s.revision(t)
	m := member(t.Output(), s, "a", 1)
	m.Pools, m.Spare, m.Idle = []string{"large"}, -1, time.Hour
	m.start(t)
	attach(t.Context(), t, m, 100)
	if err := m.Ask(t.Context(), grant.Want{}); err != nil { // the last claim is done then
		t.Fatal(err)
	}
	after := s.revision(t)
	writes := s.writes(t, before, after)
	leases, err := s.mustConnect(t).Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(writes, len(leases.Leases), "leases")
	all := int(after-before) + len(leases.Leases)
	isOne := writes[blocks.EpochKey] == 1 && writes[blocks.EpochKey]+writes[blocks.BlockKey] == int(after-before)
	if all > 5 || !isOne || len(leases.Leases) != 1 {
		t.Errorf("%d writes, of which %d are leases: %v", all, len(leases.Leases), writes)
	}
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []blocks.Kind{blocks.NodeKey, blocks.AliveKey, blocks.EpochKey} {
		if n := len(v.All(kind)); n != 1 {
			t.Errorf("%d entries of the kind %s", n, kind)
		}
	}
}

// writes returns how many transactions changed etcd after a revision, up to another one, by the kind of their first key.
func (s *Store) writes(t testing.TB, after, last int64) map[blocks.Kind]int {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	of := map[int64]blocks.Kind{}
	for resp := range s.mustConnect(t).Watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1)) {
		for _, e := range resp.Events {
			k, err := blocks.Parse(string(e.Kv.Key[len(s.prefix):]))
			if err != nil {
				t.Fatal(err)
			}
			if of[e.Kv.ModRevision] == "" {
				of[e.Kv.ModRevision] = k.Kind
			}
		}
		if n := len(resp.Events); n > 0 && resp.Events[n-1].Kv.ModRevision >= last { // the first answer has a part of all
			break
		}
	}
	counts := map[blocks.Kind]int{}
	for _, kind := range of {
		counts[kind]++
	}
	return counts
}

// revision returns how many transactions have changed etcd.
func (s *Store) revision(t testing.TB) int64 {
	v, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v.revision
}
