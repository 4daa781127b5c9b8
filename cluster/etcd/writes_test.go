package etcd

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/spec"
)

// BenchmarkAttachments is 1,000 nodes, or FAIRLEAD_NODES, that start at once, with 100 containers each that want addresses
// at once. All share one process, one host and one connection to etcd. It reports how many transactions changed etcd, and
// what they wrote: a claim is a block.
func BenchmarkAttachments(b *testing.B) {
	const containers = 100
	nodes := 1000
	if text := os.Getenv("FAIRLEAD_NODES"); text != "" {
		var err error
		if nodes, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	for range b.N {
		s := startEtcd(b)
		before := s.revision(b)
		ctx, stop := context.WithCancel(b.Context())
		var running, attaching sync.WaitGroup
		var asks atomic.Int64
		b.ResetTimer()
		for n := range nodes {
			m := member(io.Discard, s, fmt.Sprint("n", n), 1)
			m.Pools, m.Spare, m.Idle, m.unwatched = []string{"large"}, -1, time.Hour, true
			running.Go(func() {
				if err := m.Run(ctx); err != nil {
					b.Error(err)
				}
			})
			attaching.Go(func() { asks.Add(attach(ctx, b, m, containers)) })
		}
		attaching.Wait()
		b.ReportMetric(float64(asks.Load()), "asks")
		after := s.revision(b)
		b.ReportMetric(float64(after-before), "writes")
		for kind, n := range s.writes(b, before, after) {
			b.ReportMetric(float64(n), string(kind)+"-writes")
		}
		stop()
		running.Wait()
		holder := map[netip.Addr]int{}
		for n := range nodes {
			m := member(io.Discard, s, fmt.Sprint("n", n), 0)
			err := m.Leases.Hold(b.Context(), m.Network, func(leased []netip.Addr) error {
				for _, a := range leased {
					if other, twice := holder[a]; twice {
						b.Errorf("nodes %d and %d gave %v", other, n, a)
					}
					holder[a] = n
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(holder)), "addresses")
	}
}

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
		if resp.Header.Revision >= last {
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
