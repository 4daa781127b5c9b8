package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/directory"
)

// patience is the longest time that one request may take.
const patience = 5 * time.Second

// A View is what the store says of all nodes. Its methods may be called by several goroutines.
type View struct {
	mu       sync.Mutex
	id       string // of the store
	revision int64
	heard    int64 // the highest revision since the last call of takeHeard
	entries  map[blocks.Kind]map[blocks.Key]blocks.Entry
	unread   map[string]error      // what is wrong with entries that this version does not understand, by their keys
	told     map[string][]*notices // by the nodes that they concern
}

// NewView returns a view that knows nothing yet.
func NewView() *View {
	return &View{entries: map[blocks.Kind]map[blocks.Key]blocks.Entry{}, unread: map[string]error{}, told: map[string][]*notices{}}
}

// sawRevision takes a revision of the store.
func (v *View) sawRevision(revision int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heard = max(v.heard, revision)
}

// takeRevision returns the highest revision that the store has told since the last call. Zero: none. What a store told before it
// was restored is returned once, whatever was heard after that.
func (v *View) takeRevision() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	heard := v.heard
	v.heard = 0
	return heard
}

func (v *View) set(k blocks.Key, e blocks.Entry) {
	if v.entries[k.Kind] == nil {
		v.entries[k.Kind] = map[blocks.Key]blocks.Entry{}
	}
	v.entries[k.Kind][k] = e
}

// Look returns what the store says now.
func (s *Store) Look(ctx context.Context) (*View, error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	c, err := s.connect()
	if err != nil {
		return nil, err
	}
	resp, err := c.Get(ctx, s.prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, s.failed(err)
	}
	v := NewView()
	v.id, v.revision = identifier(resp.Header), resp.Header.Revision
	for _, kv := range resp.Kvs {
		text := string(kv.Key[len(s.prefix):])
		k, err := blocks.Parse(text)
		if err := v.read(text, k, err, kv); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// read takes an entry with a key, which may be none of this version. One that this version does not understand is kept apart, so
// that the others count: of what an administrator wrote alone, nothing can go on without it. A block counts as taken.
func (v *View) read(text string, k blocks.Key, err error, kv *mvccpb.KeyValue) error {
	delete(v.unread, text)
	if !k.Kind.IsKnown() {
		return nil // it is of a later version
	}
	if err != nil {
		v.unread[text] = err
		return nil
	}
	e, err := entry(k, kv)
	if err != nil && (k.Kind == blocks.ConfigKey || k.Kind == blocks.ReadoptKey) {
		return err
	}
	if err != nil {
		v.unread[text] = err
		delete(v.entries[k.Kind], k)
	}
	if err == nil || k.Kind == blocks.BlockKey {
		v.set(k, e)
	}
	return nil
}

// Unread says for people which entries this version does not understand.
func (v *View) Unread() (texts []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, text := range slices.Sorted(maps.Keys(v.unread)) {
		texts = append(texts, fmt.Sprintf("etcd has the entry %s, which this version does not understand and leaves out: %v", text, v.unread[text]))
	}
	return texts
}

// Follow keeps a view as the store is, until ctx ends. It calls changed after each change, with whether a block may be
// free that was not before, and failed when the store does not answer.
func (s *Store) Follow(ctx context.Context, v *View, changed func(freed bool), failed func(error)) {
	go s.followMembers(ctx)
	for ctx.Err() == nil {
		if err := s.follow(ctx, v, changed); ctx.Err() == nil && err != nil {
			failed(err)
		}
		v.mu.Lock()
		v.tellAll(unknown)
		v.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// errUnwatched means that etcd ended a watch.
var errUnwatched = errors.New("etcd ended the watch")

// NoCluster is the error of an etcd that has nothing of the cluster, or nothing any more. Such an etcd says nothing of the nodes.
func (s *Store) NoCluster() error {
	return fmt.Errorf("etcd at %s has no cluster %s: make it with fairlead cluster init, or correct --cluster. If it was emptied, "+
		"restore a copy of it instead: nodes of a new cluster may get addresses that containers have",
		strings.Join(s.access.Endpoints, ","), s.access.Cluster)
}

func (s *Store) follow(ctx context.Context, v *View, changed func(freed bool)) error {
	now, err := s.Look(ctx)
	if err != nil {
		return err
	}
	if now.Config() == nil {
		return s.NoCluster()
	}
	v.mu.Lock()
	v.id, v.revision, v.entries, v.unread = now.id, now.revision, now.entries, now.unread
	v.tellAll(unknown)
	v.mu.Unlock()
	s.highest.Store(now.revision)
	v.sawRevision(now.revision)
	changed(true)
	c, err := s.connect()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go s.readSecret(ctx) // a restored etcd may have another one
	events := c.Watch(clientv3.WithRequireLeader(ctx), s.prefix, clientv3.WithPrefix(), clientv3.WithRev(now.revision+1))
	for resp := range events {
		if err := resp.Err(); err != nil {
			return s.failed(err)
		}
		s.highest.Store(resp.Header.Revision)
		v.sawRevision(resp.Header.Revision)
		freed, err := s.apply(v, resp.Events)
		if err != nil {
			return err
		}
		if v.Config() == nil {
			return s.NoCluster()
		}
		changed(freed)
	}
	return errUnwatched
}

// checkRevision takes the revision that etcd told to a request, and the highest one before that request. A watch of an etcd that
// was restored from a copy says nothing until the revision is the former one again, so all watches have to begin anew.
func (s *Store) checkRevision(before, revision int64) {
	if revision < before && s.highest.CompareAndSwap(before, 0) {
		_ = s.Close()
	}
}

// apply changes a view as events say. Freed says that a block may be free that was not before.
func (s *Store) apply(v *View, events []*clientv3.Event) (freed bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range events {
		text := string(e.Kv.Key[len(s.prefix):])
		k, err := blocks.Parse(text)
		if e.Type != clientv3.EventTypeDelete {
			if err := v.read(text, k, err, e.Kv); err != nil {
				return false, err
			}
		} else {
			delete(v.unread, text)
			if err == nil {
				delete(v.entries[k.Kind], k)
				freed = freed || k.Kind == blocks.BlockKey || k.Kind == blocks.GraveKey
			}
		}
		v.tellOf(k, e.Kv.ModRevision)
	}
	return freed, nil
}

// Taken reports whether a block is not free.
func (v *View) Taken(h blocks.Holding) bool {
	return v.has(blocks.Key{Kind: blocks.BlockKey, Pool: h.Pool, Block: h.Block}) ||
		v.has(blocks.Key{Kind: blocks.GraveKey, Pool: h.Pool, Block: h.Block})
}

// Config returns what an administrator wrote. Nil: nothing.
func (v *View) Config() *blocks.Config {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.entries[blocks.ConfigKey][blocks.Key{Kind: blocks.ConfigKey}].Value.Config
}

// All returns the entries of a kind, in the order of their keys.
func (v *View) All(kind blocks.Kind) (list []blocks.Entry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	list = slices.Collect(maps.Values(v.entries[kind]))
	slices.SortFunc(list, func(a, b blocks.Entry) int { return a.Key.Compare(b.Key) })
	return list
}

// get returns the entry with a key. Its revision is zero if there is none.
func (v *View) get(k blocks.Key) blocks.Entry {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.entries[k.Kind][k]
}

// Drains reports whether a node is to give its blocks back.
func (v *View) Drains(node string) bool {
	return v.has(blocks.Key{Kind: blocks.DrainKey, Node: node})
}

// Ranges returns the addresses of each node, by the nodes' identifiers and the names of pools.
func (v *View) Ranges() map[string]map[string][]netip.Prefix {
	pools := map[string]blocks.Pool{}
	if c := v.Config(); c != nil {
		for _, p := range c.Pools {
			pools[p.Name] = p
		}
	}
	all := map[string]map[string][]netip.Prefix{}
	for _, e := range v.All(blocks.BlockKey) {
		parts := map[string]blocks.Parts{}
		for n, owner := range e.Value.Owners {
			if owner != "" {
				parts[owner] |= 1 << n
			}
		}
		for owner, of := range parts {
			if all[owner] == nil {
				all[owner] = map[string][]netip.Prefix{}
			}
			p := pools[e.Key.Pool]
			ranges := p.Ranges(blocks.Holding{Pool: p.Name, Block: e.Key.Block, Parts: of})
			all[owner][p.Name] = append(all[owner][p.Name], ranges...)
		}
	}
	return all
}

// Nodes returns the nodes that said how others reach them, with their ranges.
func (v *View) Nodes() (list []directory.Node) {
	ranges := v.Ranges()
	var pools []blocks.Pool
	if c := v.Config(); c != nil {
		pools = c.Pools
	}
	for _, e := range v.All(blocks.NodeKey) {
		h := e.Value.Host
		n := directory.Node{Name: h.Name, Joined: h.Joined, Endpoints: h.Endpoints, MAC: h.MAC}
		if h.Tunnel != nil {
			n.Tunnel = directory.Tunnel(*h.Tunnel)
		}
		for _, pool := range slices.Sorted(maps.Keys(ranges[e.Key.Node])) {
			n.Prefixes = append(n.Prefixes, ranges[e.Key.Node][pool]...)
		}
		for _, p := range pools {
			all := ranges[e.Key.Node][p.Name]
			for _, r := range all {
				if gateway := p.Gateway(r, all); gateway.IsValid() {
					n.Gateways = append(n.Gateways, gateway)
				}
			}
		}
		list = append(list, n)
	}
	return list
}
