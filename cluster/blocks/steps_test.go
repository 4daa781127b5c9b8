package blocks

import (
	"fmt"
	"math/bits"
	"slices"
)

// A kind is one of the things that happen.
type kind int8

const (
	act      kind = iota // an agent does what its owner wants on the machine
	apply                // the store takes a request and answers
	deliver              // the agent gets the answer
	start                // an agent starts
	changed              // an agent looks at the store again
	boot                 // a machine starts
	limbo                // the store takes a request whose sender does not wait
	bury                 // an administrator goes on to forget a node
	conclude             // … and finds that it has no block any more
	expire               // a grave ends
	readopt              // an administrator ends the readoption
	gc                   // leases without a container are removed
	mistake              // something that only a mutation does

	add   // a container gets an address. This and all that follow happen a bounded number of times
	del   // a container ends
	want0 // a node wants no block
	want1
	want2
	copyDisk
	copyStore
	tick      // time passes on all machines
	observe   // an agent sees which nodes were heard
	reclaim   // an agent takes the blocks of a silent node
	configure // an administrator has silent nodes lose blocks, or not

	cede
	lose // a request whose outcome is unknown. This and all that follow are faults
	kill
	off
	die // a container ends without a DEL
	forget
	clone
	restoreDisk
	restoreStore
	kinds
)

func (k kind) String() string {
	return [...]string{"does", "the store takes the request of", "the answer reaches", "an agent starts on",
		"looks again:", "boots:", "the store takes a late request:", "a block is buried:",
		"the administrator has forgotten the node of", "a grave ends:", "the readoption ends", "GC on",
		"MISTAKE on", "ADD on", "DEL on", "wants no block:", "wants one block:", "wants two blocks:",
		"the disk is copied:", "the store is copied", "time passes", "sees who was heard:", "takes what a silent node has:",
		"an administrator has silent nodes lose blocks, or not", "cedes a part:",
		"nobody knows the outcome of the request of", "the agent is killed on", "power off:",
		"a container dies on", "an administrator forgets the node of", "is cloned:", "the disk is restored:",
		"the store is restored"}[k]
}

// A move is one step of a world.
type move struct {
	kind kind
	i, j int8 // machines, or a number of something
}

func (m move) String() string { return fmt.Sprintf("%v machine %d", m.kind, m.i) }

// fault is the first kind that maxFaults bounds.
const fault = lose

func (w *world) may(k kind) bool {
	return w.spent[k] < w.most[k] && (k < fault || w.faults < w.maxFaults)
}

// moves returns what can happen.
func (w *world) moves() (all []move) {
	at := func(k kind, i int, can bool) {
		if can && (k < add || w.may(k)) {
			all = append(all, move{k, int8(i), 0})
		}
	}
	for i := range w.machines {
		m := &w.machines[i]
		a, runs := m.agent, m.agent != nil
		idle := runs && m.flight == nil && a.Next() == nil
		asks, writes := false, false
		if runs && !idle {
			_, asks = a.Next().(Read)
			_, writes = a.Next().(Txn)
		}
		at(act, i, runs && !idle && !asks && !writes)
		at(apply, i, m.flight == nil && (asks || writes))
		at(deliver, i, m.flight != nil)
		at(lose, i, writes)
		at(start, i, m.on && !runs)
		at(changed, i, idle && w.differs(m))
		at(boot, i, !m.on)
		at(del, i, m.containers != 0)
		at(gc, i, m.on && m.leases&^m.containers != 0)
		at(add, i, m.on && w.addresses(m.granted)&^m.leases != 0 && (!w.isLate(m) || w.wrong == noDeadline))
		at(observe, i, runs && w.hasNews(m))
		at(want0, i, runs && m.want != 0)
		at(want1, i, runs && m.want != 1)
		at(want2, i, runs && m.want != 2)
		at(kill, i, runs)
		at(off, i, m.on)
		at(die, i, m.containers != 0)
		at(copyDisk, i, m.copied == nil && len(m.journal.Nonces) > 0)
		at(restoreDisk, i, m.copied != nil && !m.on)
		at(forget, i, w.mayForget(m))
		at(clone, i, m.on && len(m.journal.Nonces) > 0)
		at(conclude, i, w.forgetting&(1<<m.node) != 0 && w.mine(nodeName(m.node)) == nil)
		at(mistake, i, w.mayMistake(m))
		for j := range w.machines {
			if runs && w.may(reclaim) && w.mayReclaim(m, w.machines[j].node) {
				all = append(all, move{reclaim, int8(i), int8(j)})
			}
			peer := w.machines[j].agent // which asks, and names its epoch
			asks := peer != nil && peer.view != nil && peer.fenced()
			if runs && m.node != w.machines[j].node && len(a.granted) > 0 && asks && w.may(cede) {
				all = append(all, move{cede, int8(i), int8(j)})
			}
		}
	}
	for n := range w.limbo {
		at(limbo, n, true)
	}
	for n, e := range w.store.entries {
		at(expire, n, e.Key.Kind == GraveKey)
		at(bury, n, e.Key.Kind == MineKey && w.forgetting&(1<<(e.Key.Node[0]-'a')) != 0)
	}
	at(readopt, 0, w.mayEndReadopt())
	at(tick, 0, true)
	at(configure, 0, true)
	at(copyStore, 0, w.copied == nil)
	at(restoreStore, 0, w.copied != nil && w.stores == 0)
	return all
}

// differs reports whether the store says something else than the agent saw, so that a watch tells it.
func (w *world) differs(m *machine) bool {
	a := m.agent
	if a.refusal != nil {
		is := a.judge(&view{config: w.store.get(Key{Kind: ConfigKey}), epoch: w.store.get(a.epochKey()),
			name: w.store.get(a.nameKey())})
		return is == nil || *is != *a.refusal
	}
	hungry := slices.ContainsFunc(a.demands, func(d demand) bool {
		return d.probed > 0 && len(a.granted.of(d.pool)) < d.blocks
	})
	if a.stuck != nil || hungry || a.taken != nil || w.freed(m) {
		return true
	}
	same := func(e Entry) bool { return w.store.get(e.Key).Revision == e.Revision }
	mine := w.mine(a.journal.Node)
	return a.view.store != w.store.id || !same(a.view.config) || !same(a.view.readopt) || !same(a.view.epoch) ||
		!slices.Equal(mine, a.view.mine)
}

// freed reports whether what had leases has none any more.
func (w *world) freed(m *machine) bool {
	return slices.ContainsFunc(m.agent.busy, func(h Holding) bool { return w.addresses(holdings{h})&m.leases == 0 })
}

// mine is what the store says a node owns.
func (w *world) mine(node string) (hs holdings) {
	for _, e := range w.store.entries {
		if e.Key.Kind == MineKey && e.Key.Node == node {
			hs = hs.with(Holding{e.Key.Pool, e.Key.Block, e.Value.Parts})
		}
	}
	return hs
}

func (w *world) gone(node string) bool {
	e := w.store.get(Key{Kind: EpochKey, Node: node})
	return e.Revision != 0 && e.Value.Epoch.Gone
}

// mayForget reports whether no machine with the identity of m runs, as the administrator has to see to.
func (w *world) mayForget(m *machine) bool {
	for i := range w.machines {
		if w.machines[i].node == m.node && w.machines[i].on {
			return false
		}
	}
	return w.store.get(Key{Kind: EpochKey, Node: nodeName(m.node)}).Revision != 0 && !w.gone(nodeName(m.node))
}

// mayEndReadopt reports whether the store has an assertion of every node whose machine is on. The administrator looks
// after the nodes that the store does not know: those that joined after it was copied.
func (w *world) mayEndReadopt() bool {
	if w.store.get(Key{Kind: ReadoptKey}).Revision == 0 {
		return false
	}
	awaited := Awaited(w.store.entries, w.store.id)
	for i := range w.machines {
		m := &w.machines[i]
		isKnown := w.store.get(Key{Kind: EpochKey, Node: nodeName(m.node)}).Revision != 0
		isAwaited := slices.Contains(awaited, nodeName(m.node)) && w.wrong != endReadoptUnasked
		if m.on && (isAwaited || !isKnown) {
			return false
		}
	}
	return true
}

func (w *world) mayMistake(m *machine) bool {
	node := nodeName(m.node)
	switch w.wrong {
	case putAgain:
		return m.on && m.agent == nil && m.former != nil && w.gone(node)
	case leaseOnBlock:
		return m.agent == nil && w.mine(node) != nil
	case gcByName:
		return m.leases&m.containers != 0
	}
	return false
}

// do is one step. The world must be a clone.
func (w *world) do(v move) {
	if v.kind >= add {
		w.spent[v.kind]++
	}
	if v.kind >= fault {
		w.faults++
	}
	if w.watched {
		defer w.hear()
	}
	defer w.cutOff()
	switch v.kind {
	case limbo:
		t := w.limbo[v.i]
		w.limbo = slices.Delete(w.limbo, int(v.i), int(v.i)+1)
		w.store.commit(w.change(t))
		return
	case bury:
		w.bury(int(v.i))
		return
	case expire:
		w.store.remove(w.store.entries[v.i].Key)
		return
	case readopt:
		w.store.commit(Readopted(w.store.get(Key{Kind: ConfigKey}), w.store.get(Key{Kind: ReadoptKey}), w.store.id))
		return
	case tick:
		w.tick()
		return
	case configure:
		w.configure()
		return
	case copyStore:
		s := w.store
		s.entries = slices.Clone(s.entries)
		w.copied = &s
		return
	case restoreStore:
		w.restoreStore()
		return
	}
	w.doOn(&w.machines[v.i], v)
}

// hear is what a watch of the store says.
func (w *world) hear() {
	for i := range w.machines {
		if m := &w.machines[i]; m.agent != nil {
			m.heard = max(m.heard, w.store.revision)
		}
	}
}

func (w *world) bury(n int) {
	k := w.store.entries[n].Key
	w.store.commit(Bury(k.Node, w.store.get(Key{Kind: BlockKey, Pool: k.Pool, Block: k.Block})))
}

// restoreStore replaces the store by its copy. Requests that nobody waits for end with the members of the store.
func (w *world) restoreStore() {
	w.store.entries, w.store.revision = slices.Clone(w.copied.entries), w.copied.revision
	w.stores++
	if w.wrong != sameStoreRestored {
		w.store.id = "s1"
	}
	w.limbo = nil
}

// doOn is a step of a machine.
func (w *world) doOn(m *machine, v move) {
	a := m.agent
	switch v.kind {
	case act:
		w.act(m)
	case apply:
		m.flight = new(flight)
		a.SawRevision(m.heard)
		m.heard = 0 // an answer that is behind begins the watch anew
		if r, ok := a.Next().(Read); ok {
			m.flight.snapshot = w.store.read(r)
		} else {
			m.flight.outcome = w.store.commit(w.change(a.Next().(Txn)))
		}
	case deliver:
		f := m.flight
		if a.doing.beat != nil && w.wrong == fromReply {
			late := *a.doing
			late.beat = &beat{w.now, late.beat.promise}
			a.doing = &late
		}
		m.flight = nil
		if _, ok := a.Next().(Read); ok {
			a.Saw(f.snapshot)
		} else {
			a.Committed(f.outcome)
			m.publishLate()
		}
	case lose:
		w.lose(m)
	case start:
		m.agents++
		m.agent = New(nodeName(m.node), string(m.serial), fmt.Sprintf("%c%d", m.serial, m.agents), m.journal, m.granted)
		m.agent.Resume(m.deadlines)
		m.agent.Time(w.now)
		w.want(m)
	case changed:
		if w.freed(m) {
			a.LeasesChanged()
		} else {
			a.Changed()
		}
	case observe:
		w.observe(m)
	case reclaim:
		node := nodeName(w.machines[v.j].node)
		w.limbo = append(w.limbo, m.silences.Reclaim(w.store.get(Key{Kind: EpochKey, Node: node}), w.blocksOf(node)))
	case boot:
		m.on = true
	case add:
		w.add(m)
	case del:
		one := uint16(1) << (bits.Len16(m.containers) - 1)
		m.containers &^= one
		m.leases &^= one
	case die:
		m.containers &= m.containers - 1
	case gc:
		m.leases &= m.containers
	case want0, want1, want2:
		m.want = int8(v.kind - want0)
		w.want(m)
	case cede:
		to := w.machines[v.j]
		pool := "p"
		if w.both {
			pool = six.Name
		}
		a.Cede(pool, nodeName(to.node), to.agent.view.epoch.Revision)
	case kill:
		w.kill(m)
	case off:
		w.kill(m)
		m.former = m.granted
		m.on, m.granted, m.deadlines, m.leases, m.lost, m.containers = false, nil, nil, 0, 0, 0
	case copyDisk:
		j := m.journal
		m.copied = &j
	case restoreDisk:
		m.journal, m.harmed = *m.copied, true
	case forget:
		m.harmed = true
		w.forgetting |= 1 << m.node
		epoch := w.store.get(Key{Kind: EpochKey, Node: nodeName(m.node)})
		w.store.commit(Forget(epoch, w.store.get(Key{Kind: NameKey, Node: epoch.Value.Epoch.Name})))
	case conclude:
		w.forgetting &^= 1 << m.node
	case clone:
		w.cloneMachine(m)
	case mistake:
		w.mistake(m)
	}
}

// act does what an owner wants on its machine.
func (w *world) act(m *machine) {
	switch x := m.agent.Next().(type) {
	case Save:
		if w.wrong != nonceAfterEpoch || len(x.Journal.Nonces) == 1 && x.Journal.Epoch > m.journal.Epoch {
			m.journal = x.Journal
		}
		m.agent.Saved()
	case Publish:
		if x.Without != nil && w.wrong == releaseBeforeWithdraw {
			m.late = &x
			m.agent.Published(false)
			return
		}
		if x.Without != nil && w.addresses(holdings{*x.Without})&m.leases != 0 {
			m.agent.Published(true)
			return
		}
		w.publish(m, x)
		m.agent.Published(false)
	}
}

func (m *machine) publishLate() {
	if m.late != nil {
		m.granted, m.late = m.late.Holdings, nil
	}
}

func (w *world) lose(m *machine) {
	t := m.agent.Next().(Txn)
	if m.flight == nil {
		w.limbo = append(w.limbo, t)
	}
	m.flight = nil
	claims := m.agent.doing.kind == claim
	moves := claims || m.agent.doing.kind == tellLeave
	switch {
	case claims && w.wrong == publishBeforeReadBack:
		m.agent.Committed(Outcome{Store: m.agent.view.store, Revision: m.agent.heard + 1, Done: true})
	case moves && w.wrong == noFenceAfterUnknown:
		m.agent.Committed(Outcome{Store: m.agent.view.store, Revision: m.agent.heard})
	default:
		m.agent.Unknown()
	}
}

func (w *world) add(m *machine) {
	free := w.addresses(m.granted) &^ m.leases
	one := free & -free
	if m.containers&one != 0 {
		w.broken = fmt.Sprintf("two containers of one machine have the address %b", one)
	}
	m.leases |= one
	m.containers |= one
}

func (w *world) kill(m *machine) {
	if m.agent != nil && m.flight == nil {
		if t, ok := m.agent.Next().(Txn); ok {
			w.limbo = append(w.limbo, t)
		}
	}
	m.agent, m.flight, m.late, m.heard, m.silences = nil, nil, nil, 0, Silences{}
}

// cloneMachine copies the disk of a machine into another one, which boots.
func (w *world) cloneMachine(m *machine) {
	m.harmed = true
	c := machine{node: m.node, serial: byte('0' + len(w.machines)), on: true, journal: m.journal, harmed: true, want: 1}
	if w.wrong == sameMachineClone {
		c.serial, c.agents = m.serial, m.agents+10
	}
	w.machines = append(slices.Clone(w.machines), c)
}

// mistake is what happens only with a mutation.
func (w *world) mistake(m *machine) {
	node := nodeName(m.node)
	switch w.wrong {
	case putAgain: // as flannel does: what was mine is mine
		t := Txn{}
		for _, h := range m.former {
			owners := slices.Repeat([]string{node}, w.parts)
			t.Put = append(t.Put, Pair{Key{Kind: BlockKey, Pool: "p", Block: h.Block}, Value{Owners: owners}},
				Pair{mineKey(node, h), Value{Parts: h.Parts}})
		}
		w.store.commit(t)
		m.granted, m.former = m.former, nil
	case leaseOnBlock:
		for _, h := range w.mine(node) {
			w.store.commit(Txn{Delete: []Key{mineKey(node, h), {Kind: BlockKey, Pool: "p", Block: h.Block}}})
		}
	case gcByName: // the object of the pod is deleted, and its container still runs
		living := m.leases & m.containers
		m.leases &^= living & -living
	}
}
