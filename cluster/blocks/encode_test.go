package blocks

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
)

// An encoder writes what a state of a world is. States that differ in revisions alone, and not in their order, are
// written the same.
type encoder struct {
	b         []byte
	revisions []placed
	exact     bool // revisions are written as they are: a store that was restored gives some of them again
}

type placed struct {
	at       int
	revision int64
}

func (e *encoder) byte(b ...byte) { e.b = append(e.b, b...) }
func (e *encoder) text(s string)  { e.b = append(append(e.b, byte(len(s))), s...) }
func (e *encoder) flag(b bool) {
	if b {
		e.byte(1)
	} else {
		e.byte(0)
	}
}

func (e *encoder) u16(n uint16) { e.b = binary.BigEndian.AppendUint16(e.b, n) }
func (e *encoder) revision(r int64) {
	e.revisions = append(e.revisions, placed{len(e.b), r})
	e.u16(uint16(r))
}

func (e *encoder) key(k Key) {
	e.byte(k.Kind[0])
	e.text(k.Node)
	e.block(k.Pool, k.Block)
}

func (e *encoder) holdings(hs holdings) {
	e.byte(byte(len(hs)))
	for _, h := range hs {
		e.holding(h)
	}
}

func (e *encoder) holding(h Holding) {
	e.block(h.Pool, h.Block)
	e.byte(byte(h.Parts))
}

func (e *encoder) block(pool string, block netip.Prefix) {
	e.text(pool)
	if block.IsValid() {
		a := block.Addr().As16()
		e.byte(a[15])
	}
}

func (e *encoder) value(v Value) {
	e.text(v.Node)
	e.byte(byte(v.Parts), byte(len(v.Owners)))
	for _, o := range v.Owners {
		e.text(o)
	}
	if v.Epoch != nil {
		e.byte(byte(v.Epoch.N))
		e.text(v.Epoch.Nonce)
		e.flag(v.Epoch.Gone)
		e.flag(v.Epoch.Reclaimed)
	}
	if v.Config != nil {
		e.text(v.Config.Store)
		e.byte(byte(v.Config.Pools[0].Reclaim))
	}
	e.promise(v.Beat)
	if v.Readoption != nil {
		e.text(v.Readoption.Store)
		e.revision(v.Readoption.Revision)
	}
}

func (e *encoder) entries(list []Entry) {
	e.byte(byte(len(list)))
	for _, x := range list {
		e.key(x.Key)
		e.revision(x.Revision)
		e.value(x.Value)
	}
}

func (e *encoder) txn(t Txn) {
	for _, c := range t.If {
		e.key(c.Key)
		e.revision(c.Revision)
	}
	e.byte('p')
	for _, p := range t.Put {
		e.key(p.Key)
		e.value(p.Value)
	}
	e.byte('d')
	for _, k := range t.Delete {
		e.key(k)
	}
}

func (e *encoder) journal(j Journal) {
	e.text(j.Machine)
	e.byte(byte(j.Epoch), byte(len(j.Nonces)))
	for _, n := range j.Nonces {
		e.text(n)
	}
}

func (e *encoder) refusal(r *Refusal) {
	e.flag(r != nil)
	if r != nil {
		e.byte(byte(r.Reason))
		e.text(r.Node)
	}
}

func (e *encoder) leaving(l *leaving) {
	e.flag(l != nil)
	if l != nil {
		e.holding(l.Holding)
		e.text(l.to)
		e.revision(l.epoch)
	}
}

func (e *encoder) promise(p promise) { e.byte(byte(p["p"])) }
func (e *encoder) deadlines(d Deadlines) {
	end, has := d["p"]
	e.flag(has)
	e.byte(byte(end))
}

func (e *encoder) beat(b *beat) {
	e.flag(b != nil)
	if b != nil {
		e.byte(byte(b.at))
		e.promise(b.promise)
	}
}

func (e *encoder) owner(o *Owner) {
	e.text(o.nonce)
	e.journal(o.journal)
	e.holdings(o.granted)
	e.refusal(o.told)
	for _, d := range o.demands {
		e.byte(byte(d.blocks), byte(d.probed))
	}
	e.leaving(o.ask)
	for _, p := range o.pins {
		e.holdings(holdings(p))
	}
	e.entries(o.taken)
	if e.exact {
		e.revision(o.heard)
		e.flag(o.isOlder)
	}
	e.flag(o.view != nil)
	if v := o.view; v != nil {
		e.text(v.store)
		e.entries([]Entry{v.config, v.readopt, v.epoch, v.name, v.assertion})
		e.holdings(v.mine)
	}
	e.revision(o.burnt)
	e.refusal(o.refusal)
	e.leaving(o.leave)
	e.flag(o.block != nil)
	if o.block != nil {
		e.entries(o.block.Entries)
	}
	e.flag(o.stuck != nil)
	e.holdings(o.busy)
	e.flag(o.stale)
	e.beat(o.said)
	e.deadlines(o.deadlines)
	e.deadlines(o.sure)
	e.flag(o.doing != nil)
	if o.doing != nil {
		e.byte(byte(o.doing.kind))
		e.holding(o.doing.about)
		e.beat(o.doing.beat)
	}
}

func (e *encoder) machine(m *machine) {
	e.flag(m.on)
	e.flag(m.harmed)
	e.byte(m.serial, byte(m.node), byte(m.want), byte(m.agents))
	e.journal(m.journal)
	e.flag(m.copied != nil)
	if m.copied != nil {
		e.journal(*m.copied)
	}
	e.holdings(m.former)
	e.holdings(m.granted)
	e.deadlines(m.deadlines)
	for _, node := range slices.Sorted(maps.Keys(m.silences.of)) {
		is := m.silences.of[node]
		e.text(node + is.store)
		e.revision(is.beat.Revision)
		e.revision(is.config)
		e.byte(byte(is.since))
	}
	e.u16(m.leases)
	e.u16(m.lost)
	e.u16(m.containers)
	e.flag(m.late != nil)
	e.flag(m.agent != nil)
	if m.agent != nil {
		e.owner(m.agent)
	}
	if e.exact {
		e.revision(m.heard)
	}
	e.flag(m.flight != nil)
	if f := m.flight; f != nil {
		e.text(f.outcome.Store + f.snapshot.Store)
		e.flag(f.outcome.Done)
		if e.exact {
			e.revision(f.outcome.Revision + f.snapshot.Revision)
		}
		e.entries(f.outcome.Seen)
		e.entries(f.outcome.Snapshot.Entries)
		e.entries(f.snapshot.Entries)
	}
}

// hash is the same for two worlds from which the same can happen.
func (w *world) hash(e *encoder, seed maphash.Seed) uint64 {
	e.b, e.revisions, e.exact = e.b[:0], e.revisions[:0], w.most[restoreStore] > 0
	e.text(w.store.id)
	e.byte(byte(w.now))
	e.revision(w.store.revision)
	e.entries(w.store.entries)
	e.flag(w.copied != nil)
	if w.copied != nil {
		e.revision(w.copied.revision)
		e.entries(w.copied.entries)
	}
	for i := range w.machines {
		e.machine(&w.machines[i])
	}
	for _, t := range w.limbo {
		e.txn(t)
	}
	for _, n := range w.spent {
		e.byte(byte(n))
	}
	e.text(w.broken)
	e.byte(w.forgetting)
	if !e.exact {
		e.rank()
	}
	return maphash.Bytes(seed, e.b)
}

// rank replaces the revisions by their places in the order of all.
func (e *encoder) rank() {
	var list []int64
	for _, p := range e.revisions {
		list = append(list, p.revision)
	}
	slices.Sort(list)
	list = slices.Compact(list)
	for _, p := range e.revisions {
		n, _ := slices.BinarySearch(list, p.revision)
		if list[0] != 0 {
			n++ // zero is that there is none
		}
		binary.BigEndian.PutUint16(e.b[p.at:], uint16(n))
	}
}
