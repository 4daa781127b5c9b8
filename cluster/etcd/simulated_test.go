package etcd

import (
	"bytes"
	"cmp"
	"context"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
)

// A simulated is an etcd in the time of a bubble (testing/synctest). It does what members ask of one: transactions,
// ranges, watches from a revision on, leases that end.
type simulated struct {
	mu        sync.Mutex
	id        uint64
	revision  int64
	entries   map[string]*mvccpb.KeyValue
	ends      map[int64]time.Time // of leases
	events    []*clientv3.Event
	lastLease int64
	isDown    bool
	leases    leaseFault
	changed   chan struct{} // is closed after a change
	broken    chan struct{} // is closed when all watches end
}

// A leaseFault is what a simulated etcd does when it is asked for a lease.
type leaseFault int

const (
	leasesGiven leaseFault = iota
	leasesRefused
	leasesEnd // at once
)

func (s *simulated) setLeases(f leaseFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases = f
}

func newSimulated() *simulated {
	return &simulated{id: 1, entries: map[string]*mvccpb.KeyValue{}, ends: map[int64]time.Time{},
		changed: make(chan struct{}), broken: make(chan struct{})}
}

// A copied is what a backup of etcd has.
type copied struct {
	revision int64
	entries  map[string]*mvccpb.KeyValue
	ends     map[int64]time.Time
}

func (s *simulated) backUp() copied {
	s.mu.Lock()
	defer s.mu.Unlock()
	return copied{s.revision, maps.Clone(s.entries), maps.Clone(s.ends)}
}

// restore begins another etcd with what a backup has.
func (s *simulated) restore(c copied) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id++
	s.revision, s.entries, s.ends, s.events = c.revision, maps.Clone(c.entries), maps.Clone(c.ends), nil
	s.end()
}

// history is another number after each restore.
func (s *simulated) history() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// setDown has etcd stop, which ends all watches, or run again.
func (s *simulated) setDown(isDown bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isDown = isDown
	s.end()
}

func (s *simulated) end() {
	close(s.broken)
	s.broken = make(chan struct{})
}

func (s *simulated) header() *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{ClusterId: s.id, Revision: s.revision}
}

// errDown is the answer of an etcd that does not run, and of a network that loses an answer.
var errDown = status.Error(codes.Unavailable, "the simulated etcd does not answer")

// do runs a request.
func (s *simulated) do(request func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDown {
		return errDown
	}
	s.expire()
	request()
	return nil
}

// expire deletes what has a lease that ended.
func (s *simulated) expire() {
	for _, id := range slices.Sorted(maps.Keys(s.ends)) {
		if time.Now().After(s.ends[id]) {
			s.endLease(id)
		}
	}
}

func (s *simulated) endLease(id int64) {
	delete(s.ends, id)
	next, isChanged := s.revision+1, false
	for _, key := range slices.Sorted(maps.Keys(s.entries)) {
		if s.entries[key].Lease == id {
			s.remove(key, next)
			isChanged = true
		}
	}
	s.commit(next, isChanged)
}

func (s *simulated) remove(key string, revision int64) {
	delete(s.entries, key)
	s.events = append(s.events, &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}})
}

func (s *simulated) commit(revision int64, isChanged bool) {
	if !isChanged {
		return
	}
	s.revision = revision
	close(s.changed)
	s.changed = make(chan struct{})
}

// isIn reports whether a key is key, or in a range up to end.
func isIn(k string, key, end []byte) bool {
	if len(end) == 0 {
		return k == string(key)
	}
	return k >= string(key) && k < string(end)
}

func (s *simulated) in(key, end []byte) (list []*mvccpb.KeyValue) {
	for k, kv := range s.entries {
		if isIn(k, key, end) {
			list = append(list, kv)
		}
	}
	slices.SortFunc(list, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	return list
}

func (s *simulated) txn(r *etcdserverpb.TxnRequest) *etcdserverpb.TxnResponse {
	isAsCompared := !slices.ContainsFunc(r.Compare, func(c *etcdserverpb.Compare) bool {
		var has int64
		if kv := s.entries[string(c.Key)]; kv != nil {
			has = kv.ModRevision
		}
		return has != c.GetModRevision()
	})
	ops := r.Failure
	if isAsCompared {
		ops = r.Success
	}
	resp := &etcdserverpb.TxnResponse{Succeeded: isAsCompared}
	for _, op := range ops {
		if put := op.GetRequestPut(); put != nil && put.Lease != 0 && s.ends[put.Lease].IsZero() {
			return nil // the lease has ended
		}
	}
	next, isChanged := s.revision+1, false
	for _, op := range ops {
		answer := &etcdserverpb.ResponseOp{}
		if get := op.GetRequestRange(); get != nil {
			kvs := s.in(get.Key, get.RangeEnd)
			answer.Response = &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: &etcdserverpb.RangeResponse{Kvs: kvs}}
		}
		if put := op.GetRequestPut(); put != nil {
			kv := &mvccpb.KeyValue{Key: put.Key, Value: put.Value, Lease: put.Lease, ModRevision: next, CreateRevision: next}
			if was := s.entries[string(put.Key)]; was != nil {
				kv.CreateRevision = was.CreateRevision
			}
			s.entries[string(put.Key)] = kv
			s.events = append(s.events, &clientv3.Event{Type: clientv3.EventTypePut, Kv: kv})
			isChanged = true
		}
		if del := op.GetRequestDeleteRange(); del != nil && s.entries[string(del.Key)] != nil {
			s.remove(string(del.Key), next)
			isChanged = true
		}
		resp.Responses = append(resp.Responses, answer)
	}
	s.commit(next, isChanged)
	resp.Header = s.header()
	return resp
}

// since returns the events from a revision on in a range of keys.
func (s *simulated) since(revision int64, key, end []byte) (list []*clientv3.Event) {
	for _, e := range s.events {
		if e.Kv.ModRevision >= revision && isIn(string(e.Kv.Key), key, end) {
			list = append(list, e)
		}
	}
	return list
}

// A link is the way of one agent to etcd. Each request takes a time by chance. While the link is cut, requests arrive late
// or not at all, and no answer does. A dead link is that of an agent that was killed.
type link struct {
	store *simulated

	seed uint64

	mu     sync.Mutex
	random map[string]*rand.Rand // by what is sent, because the scheduler of Go decides which goroutine is first
	isCut  bool
	isDead bool
	healed chan struct{} // is closed when the link is not cut any more
}

func (l *link) chance(of string, n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.random[of]
	if r == nil {
		h := fnv.New64()
		_, _ = h.Write([]byte(of))
		r = rand.New(rand.NewPCG(l.seed, h.Sum64()))
		l.random[of] = r
	}
	return r.IntN(n)
}

func (l *link) state() (isCut, isDead bool, healed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isCut, l.isDead, l.healed
}

func (l *link) cut(isCut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isCut == l.isCut {
		return
	}
	l.isCut = isCut
	if isCut {
		l.healed = make(chan struct{})
	} else {
		close(l.healed)
	}
}

func (l *link) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isDead = true
}

// pass takes as long as a packet on a network.
func (l *link) pass(ctx context.Context, what string) error {
	return sleep(ctx, time.Duration(100_000+l.chance(what, 3_000_000)))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// call has the store do a request. A request may be done though the caller gets no answer, and long after the caller has
// given up.
func (l *link) call(ctx context.Context, what string, request func()) error {
	if _, isDead, _ := l.state(); isDead {
		return errDown
	}
	if isCut, _, _ := l.state(); isCut || l.chance(what, 60) == 0 {
		if l.chance(what, 2) == 0 {
			late := time.Duration(l.chance(what, 20000)) * time.Millisecond
			history := l.store.history()
			time.AfterFunc(late, func() { // a connection ends with the etcd that it leads to
				if l.store.history() == history {
					_ = l.store.do(request)
				}
			})
		}
		<-ctx.Done()
		return ctx.Err()
	}
	if err := l.pass(ctx, what); err != nil {
		return err
	}
	if err := l.store.do(request); err != nil {
		return err
	}
	if l.chance(what, 100) == 0 {
		return errDown
	}
	return l.pass(ctx, what)
}

// client returns one of etcd's whose requests go by the link.
func (l *link) client() (*clientv3.Client, error) {
	c := clientv3.NewCtxClient(context.Background())
	c.KV = clientv3.NewKVFromKVClient(requests{link: l}, c)
	c.Watcher = watcher{link: l, closed: make(chan struct{})}
	c.Lease = lessor{link: l}
	return c, nil
}

// answer is that of the store to a request. If the caller has given up, it is lost.
func answer[T any](ctx context.Context, l *link, what string, request func() *T) (*T, error) {
	answers := make(chan *T, 1)
	if err := l.call(ctx, what, func() { answers <- request() }); err != nil {
		return nil, err
	}
	return <-answers, nil
}

type requests struct {
	etcdserverpb.KVClient // panics
	*link
}

func (r requests) Range(ctx context.Context, q *etcdserverpb.RangeRequest, _ ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	return answer(ctx, r.link, "range "+string(q.Key), func() *etcdserverpb.RangeResponse {
		kvs := r.store.in(q.Key, q.RangeEnd)
		return &etcdserverpb.RangeResponse{Header: r.store.header(), Kvs: kvs, Count: int64(len(kvs))}
	})
}

func (r requests) Txn(ctx context.Context, q *etcdserverpb.TxnRequest, _ ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	what := "txn"
	for _, op := range slices.Concat(q.Success, q.Failure) {
		what += string(op.GetRequestRange().GetKey()) + string(op.GetRequestPut().GetKey()) + string(op.GetRequestDeleteRange().GetKey())
	}
	a, err := answer(ctx, r.link, what, func() *etcdserverpb.TxnResponse { return r.store.txn(q) })
	if err == nil && a == nil {
		err = rpctypes.ErrGRPCLeaseNotFound
	}
	return a, err
}

type lessor struct {
	clientv3.Lease // panics
	*link
}

func (r lessor) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	a, err := answer(ctx, r.link, "grant", func() *clientv3.LeaseGrantResponse {
		s := r.store
		if s.leases == leasesRefused {
			return nil
		}
		s.lastLease++
		if s.leases != leasesEnd {
			s.ends[s.lastLease] = time.Now().Add(time.Duration(ttl) * time.Second)
		}
		return &clientv3.LeaseGrantResponse{ResponseHeader: s.header(), ID: clientv3.LeaseID(s.lastLease), TTL: ttl}
	})
	if err == nil && a == nil {
		err = errDown
	}
	return a, err
}

func (r lessor) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	return nil, r.call(ctx, "revoke", func() { r.store.endLease(int64(id)) })
}

func (r lessor) KeepAlive(ctx context.Context, id clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	answers := make(chan *clientv3.LeaseKeepAliveResponse)
	go func() {
		defer close(answers)
		for sleep(ctx, aliveSeconds*time.Second/3) == nil {
			soon, stop := context.WithTimeout(ctx, patience)
			a, err := answer(soon, r.link, "keep", func() *clientv3.LeaseKeepAliveResponse {
				if _, stands := r.store.ends[int64(id)]; !stands {
					return nil
				}
				r.store.ends[int64(id)] = time.Now().Add(aliveSeconds * time.Second)
				return &clientv3.LeaseKeepAliveResponse{ResponseHeader: r.store.header(), ID: id, TTL: aliveSeconds}
			})
			stop()
			if err == nil && a == nil {
				return
			}
			if err != nil {
				continue
			}
			select {
			case answers <- a:
			case <-ctx.Done():
			}
		}
	}()
	return answers, nil
}

func (r lessor) Close() error { return nil }

// hasForgotten reports whether the store says that a node was forgotten. A copy of it may not.
func (s *simulated) hasForgotten(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, kv := range s.entries {
		if strings.HasSuffix(key, blocks.Key{Kind: blocks.EpochKey, Node: node}.String()) {
			return strings.Contains(string(kv.Value), `"gone":true`)
		}
	}
	return false
}

// sorted are the entries of the store, for people.
func (s *simulated) sorted() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kv := range slices.SortedFunc(maps.Values(s.entries), func(a, b *mvccpb.KeyValue) int {
		return cmp.Compare(string(a.Key), string(b.Key))
	}) {
		list = append(list, string(kv.Key)+" "+string(kv.Value))
	}
	return list
}
