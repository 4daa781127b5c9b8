package etcd

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/spec"
)

// connections is how many ways to etcd the nodes of a rig share. Nodes with one connection also share what it tells of all
// nodes, as nodes behind one gRPC proxy do.
const connections = 32

// A rig is an etcd and many nodes in one process, without network devices.
type rig struct {
	b      *testing.B
	nodes  int
	store  *Store
	stores []*Store

	mu   sync.Mutex
	adds []time.Duration // how long each container waited for its address
	ends []time.Duration // when each node had all
}

// BenchmarkAttachments is 1,000 nodes, or FAIRLEAD_NODES, with 100 containers each that want addresses at once. It gives them
// addresses in three ways, on the same etcd: of blocks, as this package does; with one transaction for each address, as Calico
// does; and with a lock for each, as whereabouts does.
//
//   - The nodes' agents and plugins are the code of this package and of the plugin, without overlay networks. As many ADDs run
//     at once as there are processors. The time of one begins when it has a processor, because nodes have processors of their
//     own.
//   - Each node of the second way begins at an address of its own, and reads nothing before, so it has no conflicts.
//   - The third way has 100 nodes with 10 containers each.
//
// Writes are the revisions of etcd and the leases that nodes take; log-entries are what etcd's members agree on, among
// which are transactions that changed nothing.
func BenchmarkAttachments(b *testing.B) {
	b.Run("blocks", func(b *testing.B) { newRig(b, 1000).blocks(100) })
	b.Run("transactions", func(b *testing.B) { newRig(b, 1000).transactions(100) })
	b.Run("locks", func(b *testing.B) { newRig(b, 100).locks(10) })
}

func newRig(b *testing.B, nodes int) *rig {
	if text := os.Getenv("FAIRLEAD_NODES"); text != "" {
		most, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		nodes = min(nodes, most)
	}
	r := &rig{b: b, nodes: nodes, store: startEtcd(b)}
	for range min(connections, nodes) {
		r.stores = append(r.stores, dial(b, address))
	}
	return r
}

// storeOf is the connection of a node.
func (r *rig) storeOf(node int) *Store { return r.stores[node%len(r.stores)] }

// attachAll has each node attach containers one after the other, all nodes at once, and reports how long each takes.
func (r *rig) attachAll(containers int, add func(ctx context.Context, node, container int) time.Duration) {
	begun := time.Now()
	var running sync.WaitGroup
	for n := range r.nodes {
		running.Go(func() {
			var took []time.Duration
			for c := range containers {
				took = append(took, add(r.b.Context(), n, c))
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.adds = append(r.adds, took...)
			r.ends = append(r.ends, time.Since(begun))
		})
	}
	running.Wait()
	r.b.ReportMetric(time.Since(begun).Seconds(), "s/all-ADDs")
	r.percentiles("ADD", r.adds)
	r.percentiles("node", r.ends)
}

// percentiles reports the median and the 99th percentile.
func (r *rig) percentiles(of string, all []time.Duration) {
	slices.Sort(all)
	if len(all) == 0 {
		return
	}
	r.b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms/"+of+"-p50")
	r.b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "ms/"+of+"-p99")
}

// counted runs something, and reports what it wrote to etcd.
func (r *rig) counted(run func()) {
	revision, entries := r.store.revision(r.b), logEntries(r.b)
	r.b.ResetTimer()
	run()
	r.b.StopTimer()
	c := r.store.mustConnect(r.b)
	leases, err := c.Leases(r.b.Context())
	if err != nil {
		r.b.Fatal(err)
	}
	status, err := c.Status(r.b.Context(), address)
	if err != nil {
		r.b.Fatal(err)
	}
	last := r.store.revision(r.b)
	r.b.ReportMetric(float64(last-revision)+float64(len(leases.Leases)), "writes")
	r.b.ReportMetric(logEntries(r.b)-entries, "log-entries")
	r.b.ReportMetric(float64(status.DbSize)/1024, "KiB/database")
}

// metric is the sum of a metric of etcd over its labels.
func metric(b *testing.B, name string) (sum float64) {
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	has := false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), " ")
		of, _, _ := strings.Cut(key, "{")
		if of != name {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			b.Fatal(err)
		}
		sum, has = sum+n, true
	}
	if !has {
		b.Fatalf("etcd does not have the metric %s", name)
	}
	return sum
}

// logEntries is how many entries of its log etcd has taken.
func logEntries(b *testing.B) float64 { return metric(b, "etcd_server_proposals_applied_total") }

// A cost is what something takes that other work on the machine does not change.
type cost struct {
	agents, etcd time.Duration // of processors
	requests     float64       // messages to etcd
}

func costs(b *testing.B) cost {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return cost{time.Duration(use.Utime.Nano() + use.Stime.Nano()),
		time.Duration(metric(b, "process_cpu_seconds_total") * float64(time.Second)), metric(b, "grpc_server_msg_received_total")}
}

// report says what a phase took since before.
func (c cost) report(b *testing.B, phase string, before cost) {
	b.ReportMetric((c.agents - before.agents).Seconds(), "s/"+phase+"-processors-here")
	b.ReportMetric((c.etcd - before.etcd).Seconds(), "s/"+phase+"-processors-etcd")
	b.ReportMetric(c.requests-before.requests, phase+"-requests")
}

// A crew is the agents of a rig.
type crew struct {
	*rig
	members []*Member
	idle    []chan struct{} // of each, closed when it has its first block

	mu       sync.Mutex
	claims   int // that were sent
	took     []time.Duration
	waiting  int // nodes that claim
	since    time.Time
	claiming time.Duration // while any node did
	asks     int
}

// blocks is the way of this package.
func (r *rig) blocks(containers int) {
	k := &crew{rig: r}
	ctx, stop := context.WithCancel(r.b.Context())
	defer stop()
	watch := newSharedWatch(r.b)
	views := r.follow(ctx, k)
	for n := range r.nodes {
		k.members = append(k.members, k.newMember(n, views[n%len(views)], watch))
	}
	var running sync.WaitGroup
	r.counted(func() {
		before := r.store.revision(r.b)
		begun, free := time.Now(), costs(r.b)
		for _, m := range k.members {
			running.Go(func() {
				if err := m.Run(ctx); err != nil {
					r.b.Error(err)
				}
			})
		}
		for _, idle := range k.idle {
			<-idle
		}
		r.b.ReportMetric(time.Since(begun).Seconds(), "s/all-joined")
		k.reportClaims("join")
		joined := costs(r.b)
		joined.report(r.b, "join", free)
		processors := make(chan struct{}, runtime.GOMAXPROCS(0))
		r.attachAll(containers, func(ctx context.Context, node, container int) time.Duration {
			return k.attach(ctx, processors, node, container)
		})
		k.reportClaims("burst")
		costs(r.b).report(r.b, "burst", joined)
		r.b.ReportMetric(100*float64(k.asks)/float64(r.nodes*containers), "%asked")
		for kind, n := range r.store.writes(r.b, before, r.store.revision(r.b)) {
			r.b.ReportMetric(float64(n), string(kind)+"-writes")
			if kind == blocks.BlockKey {
				r.b.ReportMetric(float64(k.claims-n), "conflicts")
			}
		}
	})
	r.b.ReportMetric(float64(k.duplicates(containers)), "duplicates")
	stop()
	running.Wait()
}

// follow keeps a view for each connection.
func (r *rig) follow(ctx context.Context, k *crew) (views []*View) {
	for i, s := range r.stores {
		v, ready := NewView(), make(chan struct{})
		hear := sync.OnceFunc(func() { close(ready) })
		go s.Follow(ctx, v, func(freed bool) {
			hear()
			for n := i; freed && n < len(k.members); n += len(r.stores) {
				k.members[n].Freed()
			}
		}, func(err error) { r.b.Log(err) })
		<-ready
		views = append(views, v)
	}
	return views
}

func (k *crew) newMember(n int, v *View, watch *sharedWatch) *Member {
	m := member(io.Discard, k.storeOf(n), fmt.Sprint("n", n), 1)
	m.View, m.Pools, m.Spare, m.Reserve, m.Idle = v, []string{"large"}, -1, 4, 10*time.Minute
	m.Host.Endpoints = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)})}
	m.Host.MAC, m.Host.Version = "02:00:00:00:00:00", "v0.0.0"
	m.watchLeases = watch.add
	idle := make(chan struct{})
	hear := sync.OnceFunc(func() { close(idle) })
	var claimed time.Time
	m.before = func(a blocks.Action) {
		t, isTxn := a.(blocks.Txn)
		if a == nil {
			hear()
		}
		if !isTxn || t.Put[0].Key.Kind != blocks.BlockKey {
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.claims++
		if !claimed.IsZero() {
			return
		}
		claimed = time.Now()
		if k.waiting++; k.waiting == 1 {
			k.since = claimed
		}
	}
	m.Published = func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if claimed.IsZero() {
			return
		}
		k.took = append(k.took, time.Since(claimed))
		claimed = time.Time{}
		if k.waiting--; k.waiting == 0 {
			k.claiming += time.Since(k.since)
		}
	}
	k.idle = append(k.idle, idle)
	return m
}

// reportClaims reports how long claims took, from the first attempt of each until the grant has the blocks.
func (k *crew) reportClaims(phase string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.percentiles(phase+"-claim", k.took)
	k.b.ReportMetric(k.claiming.Seconds(), "s/"+phase+"-claims")
	k.took, k.claiming = nil, 0
}

// attach gives a container an address. It returns how long that took since it had a processor.
func (k *crew) attach(ctx context.Context, processors chan struct{}, node, container int) (took time.Duration) {
	m := k.members[node]
	o := spec.Owner{Network: m.Network, ContainerID: fmt.Sprint("x", container), IfName: "eth0"}
	leases := allocator(m.Network)
	for {
		processors <- struct{}{}
		begun := time.Now()
		_, err := leases.Allocate(ctx, o)
		took += time.Since(begun)
		<-processors
		if err == nil {
			return took
		}
		k.mu.Lock()
		k.asks++
		k.mu.Unlock()
		begun = time.Now()
		err = m.Ask(ctx, grant.Want{})
		took += time.Since(begun)
		if err != nil {
			k.b.Error(err)
			return took
		}
	}
}

// duplicates counts addresses that two containers have, and fails where containers have none.
func (k *crew) duplicates(containers int) (n int) {
	holder := map[netip.Addr]string{}
	for _, m := range k.members {
		leased, err := m.Leases.Leased(m.Network)
		if err != nil {
			k.b.Fatal(err)
		}
		for _, a := range leased {
			if holder[a] != "" {
				k.b.Errorf("%s and %s gave %v", holder[a], m.Network, a)
				n++
			}
			holder[a] = m.Network
		}
	}
	if len(holder) != k.nodes*containers {
		k.b.Errorf("%d addresses for %d containers", len(holder), k.nodes*containers)
	}
	return n
}

// A sharedWatch tells many nodes of their leases by one instance of inotify(7), of which a user may have few.
type sharedWatch struct {
	fd int

	mu sync.Mutex
	of map[uint32]chan<- struct{}
}

func newSharedWatch(b *testing.B) *sharedWatch {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		b.Fatal(err)
	}
	w := &sharedWatch{fd: fd, of: map[uint32]chan<- struct{}{}}
	f := os.NewFile(uintptr(fd), "inotify")
	b.Cleanup(func() { _ = f.Close() })
	go func() {
		const head = 16 // bytes of an event before its name
		for buf := make([]byte, 1<<16); ; {
			n, err := f.Read(buf)
			if err != nil {
				return
			}
			for at := 0; at+head <= n; at += head + int(binary.NativeEndian.Uint32(buf[at+12:])) {
				w.mu.Lock()
				changed := w.of[binary.NativeEndian.Uint32(buf[at:])]
				w.mu.Unlock()
				if changed != nil {
					notify(changed)
				}
			}
		}
	}()
	return w
}

func (w *sharedWatch) add(h *host, _ context.Context, changed chan<- struct{}) error {
	dir, err := h.leaseDir()
	if err != nil {
		return err
	}
	wd, err := unix.InotifyAddWatch(w.fd, dir, leaseEvents)
	if err != nil {
		return &os.PathError{Op: "watch", Path: dir, Err: err}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of[uint32(wd)] = changed
	return nil
}

// transactions creates two entries for each address in one transaction: the address, and what a container has.
func (r *rig) transactions(containers int) {
	conflicts := 0
	r.counted(func() {
		r.attachAll(containers, func(ctx context.Context, node, container int) time.Duration {
			c := r.storeOf(node).mustConnect(r.b)
			handle := fmt.Sprintf("/addresses/handle/pods.%064x", node<<16+container)
			begun := time.Now()
			for at := node*containers + container; ; at++ {
				a := netip.AddrFrom4([4]byte{10, byte(at >> 16), byte(at >> 8), byte(at)})
				address := "/addresses/address/" + a.String()
				resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(address), "=", 0)).
					Then(clientv3.OpPut(address, `{"handle":"`+handle+`","node":"n`+strconv.Itoa(node)+`"}`),
						clientv3.OpPut(handle, `{"addresses":["`+a.String()+`"]}`)).Commit()
				if err != nil {
					r.b.Error(err)
				}
				if err != nil || resp.Succeeded {
					return time.Since(begun)
				}
				r.mu.Lock()
				conflicts++
				r.mu.Unlock()
			}
		})
	})
	r.b.ReportMetric(float64(conflicts), "conflicts")
	r.addresses("/addresses/address/", containers)
}

// locks reads a pool and writes an address under a lock of etcd's.
func (r *rig) locks(containers int) {
	var mutexes []*concurrency.Mutex
	const pool = "/addresses/pool"
	r.counted(func() {
		for n := range r.nodes {
			s, err := concurrency.NewSession(r.storeOf(n).mustConnect(r.b))
			if err != nil {
				r.b.Fatal(err)
			}
			mutexes = append(mutexes, concurrency.NewMutex(s, "/addresses/lock"))
		}
		r.attachAll(containers, func(ctx context.Context, node, container int) time.Duration {
			c, m := r.storeOf(node).mustConnect(r.b), mutexes[node]
			begun := time.Now()
			if err := m.Lock(ctx); err != nil {
				r.b.Error(err)
				return time.Since(begun)
			}
			defer func() { _ = m.Unlock(ctx) }()
			now, err := c.Get(ctx, pool)
			if err == nil {
				next := 0
				if len(now.Kvs) > 0 {
					next, err = strconv.Atoi(string(now.Kvs[0].Value))
				}
				_, werr := c.Txn(ctx).Then(clientv3.OpPut(pool, strconv.Itoa(next+1)),
					clientv3.OpPut(fmt.Sprint("/addresses/address/", next), fmt.Sprint("n", node))).Commit()
				if err == nil {
					err = werr
				}
			}
			if err != nil {
				r.b.Error(err)
			}
			return time.Since(begun)
		})
	})
	r.addresses("/addresses/address/", containers)
}

// addresses fails if etcd has not as many addresses as there are containers.
func (r *rig) addresses(prefix string, containers int) {
	resp, err := r.store.mustConnect(r.b).Get(r.b.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || resp.Count != int64(r.nodes*containers) {
		r.b.Errorf("%v, %v: want %d addresses", resp, err, r.nodes*containers)
	}
}
