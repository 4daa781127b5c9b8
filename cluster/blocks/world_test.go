package blocks

import (
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
)

// A world is a store and machines with their disks, agents and containers, in a state. Steps lead to others.
type world struct {
	*env
	store      store
	copied     *store // a copy of the store, to restore
	machines   []machine
	limbo      []Txn // sent by agents that do not wait for the answer: they may be done at any time
	stores     int   // how many times the store was restored
	forgetting byte  // nodes that an administrator forgets, as bits
	spent      [kinds]int8
	faults     int8
	broken     string // what is held twice
	now        int64
}

// An env is what does not change: how large the world is, what happens in it, and what is wrong in it.
type env struct {
	nodes, blocks, parts int
	most                 [kinds]int8 // how often a kind of step happens
	maxFaults            int8        // of all kinds of faults together
	started              bool        // the agents run when it begins
	pinned               bool        // the pool's blocks are wanted by name: one is the first of them
	owned                int         // blocks that machine 0 has when it begins
	wrong                mutation
	watched              bool // agents hear each revision of the store at once
	timed                Delay
	fenced               bool // containers of silent nodes are cut off, and nobody ends them
	hungry               bool // machine 1 wants a block when it begins
	both                 bool // there is a pool of IPv6, too: one block, which two nodes can share
}

// A mutation is a mistake in the protocol, or something that it does not protect against.
type mutation int

const (
	none mutation = iota
	noEpochCompare
	publishBeforeReadBack
	releaseBeforeWithdraw
	putAgain
	leaseOnBlock
	gcByName
	noFenceAfterUnknown
	releaseWithoutEpoch
	cedeWithoutEpoch
	nonceAfterEpoch
	sameMachineClone
	sameStoreRestored
	endReadoptUnasked
	fromFirstLook
	fromReply
	noDeadline
	goOnReclaimed
	noBeatCompare
	promiseUnkept
	noFenceAtAll
	fenceByAgent
	fenceGoesOnReturn
)

// A store is etcd.
type store struct {
	id       string
	revision int64
	entries  []Entry
}

// A machine is one with a disk, which outlives boots.
type machine struct {
	node    int  // whose identity it has
	serial  byte // of the hardware
	on      bool
	journal Journal
	copied  *Journal // a copy of the disk, to restore
	former  holdings // of the grant of the last boot; only putAgain knows it

	// what ends with the boot
	granted    holdings
	deadlines  Deadlines
	silences   Silences // that its agent has seen
	leases     uint16
	lost       uint16 // addresses of leases whose blocks left the grant
	containers uint16
	agent      *Owner
	flight     *flight
	heard      int64    // by the watch of the agent
	late       *Publish // that releaseBeforeWithdraw has not done yet
	want       int8
	agents     int8 // how many have started
	harmed     bool // something happened after which it may be refused
}

// A flight is an answer of the store on its way to the agent.
type flight struct {
	snapshot Snapshot
	outcome  Outcome
}

func (e *env) pool() Pool {
	return Pool{Name: "p", Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), 29-bits.Len(uint(e.blocks))),
		Bits: 28, Parts: e.parts, Pinned: e.pinned, Reclaim: e.timed, Fence: e.fence()}
}

// six is the pool of IPv6, where there is one.
var six = Pool{Name: "six", Prefix: netip.MustParsePrefix("fd00::/124"), Bits: 124, Parts: 2}

// want tells an agent what its machine wants.
func (w *world) want(m *machine) {
	if w.both {
		m.agent.Want(six.Name, int(m.want))
	}
	if !w.pinned {
		m.agent.Want("p", int(m.want))
		return
	}
	var all Pin
	for n := range uint64(m.want) {
		all = append(all, Holding{"p", w.pool().block(n), w.pool().all()})
	}
	m.agent.Pin([]Pin{all})
}

func nodeName(i int) string { return string(rune('a' + i)) }

func newWorld(e *env) *world {
	w := &world{env: e, store: store{id: "s0", revision: 1}}
	pools := []Pool{e.pool()}
	if e.both {
		pools = append(pools, six)
	}
	w.store.commit(Init(Config{Store: "s0", Pools: pools}))
	for i := range e.nodes {
		w.machines = append(w.machines,
			machine{node: i, serial: byte('0' + i), on: true, journal: Journal{Node: nodeName(i)}})
	}
	w.machines[0].want = int8(e.owned)
	if e.started {
		w.settle()
	}
	if e.hungry {
		w.machines[1].want = 1
		w.want(&w.machines[1])
	}
	return w
}

func (w *world) clone() *world {
	c := *w
	c.store.entries = slices.Clone(w.store.entries)
	c.machines = slices.Clone(w.machines)
	c.limbo = slices.Clone(w.limbo)
	for i := range c.machines {
		m := &c.machines[i]
		m.silences.of = maps.Clone(m.silences.of)
		if m.agent != nil {
			a := *m.agent
			a.demands = slices.Clone(a.demands)
			if a.view != nil {
				v := *a.view
				a.view = &v
			}
			m.agent = &a
		}
		if m.flight != nil {
			f := *m.flight
			m.flight = &f
		}
	}
	return &c
}

func (s *store) get(k Key) Entry {
	for _, e := range s.entries {
		if e.Key == k {
			return e
		}
	}
	return Entry{Pair: Pair{Key: k}}
}

func (s *store) remove(k Key) {
	s.entries = slices.DeleteFunc(s.entries, func(e Entry) bool { return e.Key == k })
}

// commit does a transaction as etcd does.
func (s *store) commit(t Txn) Outcome {
	r := Outcome{Store: s.id, Done: true}
	for _, c := range t.If {
		e := s.get(c.Key)
		r.Done = r.Done && e.Revision == c.Revision
		if e.Revision != 0 {
			r.Seen = append(r.Seen, e)
		}
	}
	if r.Done {
		r.Seen = nil
		s.revision++
		for _, k := range t.Delete {
			s.remove(k)
		}
		for _, p := range t.Put {
			s.remove(p.Key)
			s.entries = append(s.entries, Entry{p, s.revision})
		}
		slices.SortFunc(s.entries, func(a, b Entry) int { return a.Key.Compare(b.Key) })
		r.Snapshot = s.read(t.Read)
	}
	r.Revision = s.revision
	return r
}

func (s *store) read(r Read) Snapshot {
	snap := Snapshot{Store: s.id, Revision: s.revision}
	for _, e := range s.entries {
		mine := e.Key.Kind == MineKey && e.Key.Node == r.Mine
		if mine || slices.Contains(r.Keys, e.Key) {
			snap.Entries = append(snap.Entries, e)
		}
	}
	return snap
}

// addresses returns those of holdings, as bits: each part of a block has one.
func (w *world) addresses(hs holdings) (all uint16) {
	for n := range w.blocks {
		all |= uint16(hs.parts(Holding{Pool: "p", Block: w.pool().block(uint64(n))})) << (n * w.parts)
	}
	ofSix := uint16(hs.parts(Holding{Pool: six.Name, Block: six.Prefix}))
	return all | ofSix<<(w.blocks*w.parts)
}

// held says which address two containers have.
func (w *world) held() string {
	if w.broken != "" {
		return w.broken
	}
	for i := range w.machines {
		for j := range i {
			if both := w.reaching(&w.machines[i]) & w.reaching(&w.machines[j]); both != 0 {
				return fmt.Sprintf("machines %d and %d both have a container with the addresses %b", j, i, both)
			}
		}
	}
	return ""
}

// index says where the store contradicts itself.
func (w *world) index() string {
	owned := map[Key]Parts{}
	for _, e := range w.store.entries {
		for n, owner := range e.Value.Owners {
			if owner != "" {
				owned[mineKey(owner, Holding{Pool: e.Key.Pool, Block: e.Key.Block})] |= 1 << n
			}
		}
	}
	for _, e := range w.store.entries {
		if e.Key.Kind != MineKey {
			continue
		}
		if owned[e.Key] != e.Value.Parts {
			return fmt.Sprintf("%v says %b, and the block %b", e.Key, e.Value.Parts, owned[e.Key])
		}
		delete(owned, e.Key)
	}
	if len(owned) > 0 {
		return fmt.Sprint("the index lacks ", owned)
	}
	return ""
}

// change is what a mutation makes of a transaction of an agent.
func (w *world) change(t Txn) Txn {
	fence, moves := false, false
	for _, p := range t.Put {
		fence = fence || p.Key.Kind == EpochKey
	}
	leaves := !slices.ContainsFunc(t.If, func(c Compare) bool {
		return c.Key.Kind == GraveKey || c.Key.Kind == ReadoptKey
	})
	epochs := 0
	for _, c := range t.If {
		moves = moves || c.Key.Kind == BlockKey
	}
	t.If = slices.DeleteFunc(slices.Clone(t.If), func(c Compare) bool {
		if c.Key.Kind == EpochKey {
			epochs++
		}
		switch w.wrong {
		case noEpochCompare:
			return !fence && c.Key.Kind == EpochKey
		case releaseWithoutEpoch:
			return moves && leaves && c.Key.Kind == EpochKey && epochs == 1
		case cedeWithoutEpoch:
			return c.Key.Kind == EpochKey && epochs == 2
		case noBeatCompare:
			return c.Key.Kind == BeatKey
		}
		return false
	})
	return t
}
