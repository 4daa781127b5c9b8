package etcd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/plugin/cluster"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// doomed in the environment makes this program a member that ends at an action.
const doomed = "FAIRLEAD_TEST_DOOMED"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(doomed) != "":
		os.Exit(beDoomed())
	case os.Getenv(behind) != "":
		os.Exit(beBehind())
	case os.Getenv("CNI_COMMAND") != "":
		os.Exit(sdk.Serve([]sdk.Plugin{cluster.Plugin}, "cluster", "test"))
	}
	nstest.Main(m)
}

const address = "127.0.0.1:2379"

// startEtcd starts etcd in this test's host, with an empty directory and a cluster.
func startEtcd(t testing.TB) *Store {
	s, _, _ := startEtcdIn(t)
	return s
}

func startEtcdIn(t testing.TB) (s *Store, dir string, stop func()) {
	nstest.NeedProgram(t, "etcd")
	dir, err := os.MkdirTemp("/run", "etcd") // which is no disk: the tests do not wait for it
	if err != nil {
		t.Fatal(err)
	}
	stop = runEtcd(t, dir)
	t.Cleanup(stop)
	s = dial(t, address)
	pools := []blocks.Pool{{Name: "p", Prefix: netip.MustParsePrefix("10.9.0.0/25"), Bits: 26, Parts: 2},
		{Name: "large", Prefix: netip.MustParsePrefix("10.128.0.0/14"), Bits: 26, Parts: 1}}
	snap := s.mustRead(t, blocks.Read{})
	r, err := s.Commit(t.Context(), blocks.Init(blocks.Config{Store: snap.Store, Pools: pools}))
	if err != nil || !r.Done {
		t.Fatal(r, err)
	}
	return s, dir, stop
}

// runEtcd starts etcd with the data of a directory. Stop kills it.
func runEtcd(t testing.TB, dir string) (stop func()) {
	cmd := exec.Command("etcd", "--data-dir", dir, "--listen-client-urls", "http://"+address, "--advertise-client-urls",
		"http://"+address, "--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls",
		"http://127.0.0.1:2380", "--initial-cluster", "default=http://127.0.0.1:2380", "--log-level", "error")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// dial waits for etcd, however long it takes to start.
func dial(t testing.TB, address string) *Store {
	s, err := Open(Access{Cluster: "c", Endpoints: []string{"http://" + address}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for {
		if _, err := s.Read(t.Context(), blocks.Read{Keys: []blocks.Key{{Kind: blocks.ConfigKey}}}); err == nil {
			return s
		} else if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

func (s *Store) mustRead(t testing.TB, r blocks.Read) blocks.Snapshot {
	r.Keys = append(r.Keys, blocks.Key{Kind: blocks.ConfigKey})
	snap, err := s.Read(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// member returns one of a node, whose network has its name. The host has both nodes: what differs is the network.
func member(t io.Writer, s *Store, node string, want int) *Member {
	m := NewMember(s, NewView(), node, blocks.Host{Name: node})
	m.Pools, m.Least, m.Log = []string{"p"}, want, slog.New(slog.NewTextHandler(t, nil))
	return m
}

// mustConnect returns the client of the store.
func (s *Store) mustConnect(t testing.TB) *clientv3.Client {
	c, err := s.connect()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// rest runs a member until it has nothing to do.
func (m *Member) rest(t testing.TB) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	before := m.before
	m.before = func(a blocks.Action) {
		if before != nil {
			before(a)
		}
		if a == nil {
			stop()
		}
	}
	if err := m.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// ranges returns what the grant of a node has.
func ranges(t testing.TB, node string) []netip.Prefix {
	g, err := grant.OfBoot(node)
	if err != nil {
		return nil
	}
	if _, err := grant.Read(node); err != nil && len(g.Ranges) > 0 {
		t.Error(err)
	}
	return g.Ranges
}

// check fails if two nodes have a block, or a node has one that is not its own in etcd.
func check(t *testing.T, s *Store) {
	t.Helper()
	var all []netip.Prefix
	for _, node := range []string{"a", "b"} {
		h := host{network: node}
		j, err := h.loadJournal()
		if err != nil {
			t.Fatal(err)
		}
		granted, _, err := h.granted()
		if err != nil {
			t.Fatal(err)
		}
		mine := s.mustRead(t, blocks.Read{Mine: j.Node})
		for _, held := range granted {
			if !slices.ContainsFunc(mine.Entries, func(e blocks.Entry) bool {
				return e.Key.Block == held.Block && e.Value.Parts&held.Parts == held.Parts
			}) {
				t.Errorf("node %s is granted %v, and etcd has %v", node, held, mine.Entries)
			}
		}
		for _, p := range ranges(t, node) {
			if slices.ContainsFunc(all, p.Overlaps) {
				t.Errorf("two nodes are granted %v", p)
			}
			all = append(all, p)
		}
	}
}

func expect(t *testing.T, node string, blocks int) {
	t.Helper()
	if got := ranges(t, node); len(got) != blocks {
		t.Fatalf("node %s is granted %v, want %d blocks", node, got, blocks)
	}
}

// Two nodes get different blocks, and one gets what the other gave back. A block with a lease stays.
func TestShare(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "a", 1).rest(t)
	member(t.Output(), s, "b", 2).rest(t)
	check(t, s)
	expect(t, "a", 1)
	expect(t, "b", 1) // the pool has two

	leases := allocator("a")
	o := spec.Owner{Network: "a", ContainerID: "x", IfName: "eth0"}
	if _, err := leases.Allocate(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	member(t.Output(), s, "a", 0).rest(t)
	expect(t, "a", 1)

	if err := leases.Release(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	member(t.Output(), s, "a", 0).rest(t)
	expect(t, "a", 0)
	member(t.Output(), s, "b", 2).rest(t)
	expect(t, "b", 2)
	check(t, s)
	if _, err := leases.Allocate(t.Context(), o); err == nil {
		t.Error("a node without a block gave an address")
	}

	member(t.Output(), s, "b", 0).rest(t)
	resp, err := s.mustConnect(t).Get(t.Context(), s.prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil || resp.Count != 7 { // the configuration, and an epoch, a name and a host of both
		t.Errorf("%d keys stay: %v, %v", resp.Count, resp.Kvs, err)
	}
}

// allocator is the store of leases as the plugin cluster has it.
func allocator(network string) *disk.Store {
	s := &disk.Store{}
	s.Granted = func() ([]ipam.Set, error) {
		g, err := grant.Read(network)
		if err != nil {
			return nil, err
		}
		set := ipam.Set{Path: "grant"}
		for _, p := range g.Ranges {
			set.Ranges = append(set.Ranges, ipam.Range{Subnet: p})
		}
		return ipam.Complete([]ipam.Set{set})
	}
	return s
}

// A member that is killed before each of its actions leaves nothing that two nodes have, and the next one goes on.
func TestKill(t *testing.T) {
	s := startEtcd(t)
	kills := 0
	for _, want := range []int{1, 0} {
		for n := 1; ; n++ {
			member(t.Output(), s, "a", 1-want).rest(t)
			expect(t, "a", 1-want)
			killed := runDoomed(t, want, n)
			check(t, s)
			member(t.Output(), s, "b", 2).rest(t) // takes what is free
			check(t, s)
			member(t.Output(), s, "b", 1).rest(t)
			member(t.Output(), s, "a", want).rest(t)
			expect(t, "a", want)
			expect(t, "b", 1)
			check(t, s)
			if !killed {
				break
			}
			kills++
		}
	}
	t.Log(kills, "kills")
	if kills < 12 {
		t.Errorf("%d kills: a start alone has five actions", kills)
	}
}

// runDoomed runs a member of node a in a process that is killed before action n. It reports whether there was one.
func runDoomed(t *testing.T, want, n int) bool {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", doomed, want, n))
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	err := cmd.Run()
	if err == nil {
		return false
	}
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || w.Signal() != syscall.SIGKILL {
		t.Fatal(err)
	}
	return true
}

func beDoomed() int {
	var want, n int
	_, err := fmt.Sscan(os.Getenv(doomed), &want, &n)
	s, serr := Open(Access{Cluster: "c", Endpoints: []string{"http://" + address}})
	if err != nil || serr != nil {
		return 1
	}
	m := member(os.Stderr, s, "a", want)
	m.before = func(a blocks.Action) {
		if a == nil {
			os.Exit(0)
		}
		if n--; n == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	_ = m.Run(context.Background())
	return 1
}

// A node that was forgotten gets no addresses when it returns, and its block rests before others get it.
func TestForget(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "a", 1).rest(t)
	expect(t, "a", 1)
	j, err := (&host{network: "a"}).loadJournal()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", j.Node} { // and again
		if err := s.Forget(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Forget(t.Context(), "z"); err == nil {
		t.Error("a node that nobody knows was forgotten")
	}
	graves, err := s.mustConnect(t).Get(t.Context(), s.prefix+string(blocks.GraveKey), clientv3.WithPrefix())
	if err != nil || len(graves.Kvs) != 1 || graves.Kvs[0].Lease == 0 {
		t.Errorf("%v, %v: want a grave that ends", graves, err)
	}

	member(t.Output(), s, "a", 1).rest(t)
	expect(t, "a", 0)
	if g, err := grant.OfBoot("a"); err != nil || g.Missing == "" || g.Hint == "" {
		t.Errorf("%+v, %v: want why there is no range", g, err)
	}
	member(t.Output(), s, "b", 2).rest(t)
	expect(t, "b", 1)
	if n := len(s.mustRead(t, blocks.Read{Mine: j.Node}).Entries); n != 1 {
		t.Errorf("the node that was forgotten has %d entries", n-1)
	}

	if err := os.Remove((&host{network: "a"}).journalPath()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.mustConnect(t).Delete(t.Context(), s.prefix+string(blocks.GraveKey), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	member(t.Output(), s, "a", 1).rest(t) // as another node of the same name
	expect(t, "a", 1)
	check(t, s)
}

// The name of a forgotten node stays with another node that has it.
func TestForgetNamesake(t *testing.T) {
	s := startEtcd(t)
	member(t.Output(), s, "a", 1).rest(t)
	name := blocks.Key{Kind: blocks.NameKey, Node: "a"}
	before := s.mustRead(t, blocks.Read{Keys: []blocks.Key{name}}).Of(name)
	_, err := s.Commit(t.Context(), blocks.Txn{Put: []blocks.Pair{{
		Key:   blocks.Key{Kind: blocks.EpochKey, Node: "namesake"},
		Value: blocks.Value{Epoch: &blocks.Epoch{N: 1, Nonce: "n", Name: "a"}},
	}}})
	if err == nil {
		err = s.Forget(t.Context(), "namesake")
	}
	if err != nil {
		t.Fatal(err)
	}
	if after := s.mustRead(t, blocks.Read{Keys: []blocks.Key{name}}).Of(name); after.Revision != before.Revision {
		t.Errorf("the name's entry is %+v now, want %+v", after, before)
	}
}

// unwatched is how members watch no leases.
func unwatched(*host, context.Context, chan<- struct{}) error { return nil }

// BenchmarkHerd starts 1,000 nodes, each of which claims two of 4,096 blocks, all at once when the last one has joined. They
// share one process, one host and one connection to etcd.
func BenchmarkHerd(b *testing.B) {
	for range b.N {
		s := startEtcd(b)
		var reads, txns, claims atomic.Int64
		var nodes, joined sync.WaitGroup
		var begun time.Time
		begin := sync.OnceFunc(func() { begun = time.Now() })
		joined.Add(1000)
		b.ResetTimer()
		for n := range 1000 {
			join := sync.OnceFunc(joined.Done)
			m := member(b.Output(), s, fmt.Sprint("n", n), 0)
			m.Pools, m.Least, m.watchLeases = []string{"large"}, 2, unwatched
			m.before = func(a blocks.Action) {
				switch a := a.(type) {
				case blocks.Read:
					reads.Add(1)
				case blocks.Txn:
					txns.Add(1)
					if a.Put[0].Key.Kind == blocks.BlockKey {
						claims.Add(1)
						join()
						joined.Wait()
						begin()
					}
				}
			}
			nodes.Go(func() { m.rest(b) })
		}
		nodes.Wait()
		b.ReportMetric(time.Since(begun).Seconds(), "s/all-claims")
		b.ReportMetric(float64(reads.Load()), "reads")
		b.ReportMetric(float64(txns.Load()), "txns")
		b.ReportMetric(float64(claims.Load()-1000), "conflicts")
		for n := range 1000 {
			if g, err := grant.OfBoot(fmt.Sprint("n", n)); err != nil || len(g.Ranges) != 2 {
				b.Fatal(g, err)
			}
		}
	}
}
