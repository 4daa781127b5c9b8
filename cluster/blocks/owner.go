// Package blocks decides how a node gets, keeps and gives back blocks of addresses, which the nodes of a cluster
// share through etcd.
//
// A node owns a block without a time limit, and allocates addresses of it without asking anybody. The store has an
// entry for each block, and none for an address. Three places say what a node may use:
//
//   - the store: which node owns which block;
//   - the grant: what the plugin cluster allocates from. It ends with the boot, as the containers do. It is a part of
//     what the store says: a block comes into it after the store has confirmed the claim, and leaves it before the
//     store is told;
//   - the journal: who the node is. It is on the disk.
//
// An [Owner] has no clock, no goroutine, no socket and no file. Next says what is to be done, and one of the other
// methods takes what came of it. So one and the same code decides in fairlead-agent and in the tests that go through
// all orders of events.
package blocks

import (
	"cmp"
	"slices"
)

// An Owner is a node as an owner of blocks, while one agent runs.
type Owner struct {
	name    string // of the node, for people
	machine string // identifier of the hardware; empty: unknown
	nonce   string // of this agent, which no other has

	journal Journal
	granted holdings
	told    *Refusal // what the grant says
	demands []demand
	ask     *leaving // cede a part
	pins    []Pin
	says    *Announcement // with the next epoch

	heard   int64     // the highest revision of the store that the node knows of
	isOlder bool      // the store said a lower one since
	view    *view     // what the store said; nil: it must be read
	burnt   int64     // revision of the epoch in which a write has an unknown outcome
	refusal *Refusal  // by what the store said
	leave   *leaving  // what is not in the grant any more, and the store has to be told
	block   *Snapshot // of what leaves, or is asserted
	stuck   *Holding  // what another node has, and this one too
	taken   []Entry   // of blocks that were not free when the node claimed them
	busy    holdings  // what has leases
	stale   bool      // the store changed since the action that goes on began
	doing   *step

	now       int64     // see Time
	said      *beat     // that the store confirmed last; nil: no agent of this process had one
	deadlines Deadlines // in the grant
	isDue     bool      // the grant is to be written again
	sure      Deadlines // that the grant may have

	// Taken reports whether a block is probably not free, so that claims begin with one that is. Nil: nothing is known.
	Taken func(Holding) bool
}

// A demand is how many blocks of a pool a node wants.
type demand struct {
	pool   string
	blocks int
	probed uint64 // blocks at which the search has looked
}

// A Pin is what the containers of one call asked for by name, or the blocks in which they have addresses already: all of it is
// claimed, or none.
type Pin []Holding

// leaving is what a node gives to another, or back.
type leaving struct {
	Holding
	to    string // empty: none
	epoch int64  // revision of the epoch of to
}

// A step is an action and what it is for.
type step struct {
	action Action
	kind   stepKind
	about  Holding
	claims []Holding // of a claim
	beat   *beat     // that the transaction has; nil: none
}

type stepKind int

const (
	look stepKind = iota
	lookAtBlock
	raise
	fence
	claim
	tellLeave
	assert
	assertAll
	say
	save
	publish
)

// New returns the owner for an agent that starts. The journal is what the disk has: one with a new identifier of the
// node and nothing else, if there is none. Granted is what the grant of this boot has.
func New(name, machine, nonce string, j Journal, granted []Holding) *Owner {
	return &Owner{name: name, machine: machine, nonce: nonce, journal: j, granted: granted}
}

// Want says how many blocks of a pool the node is to own.
func (o *Owner) Want(pool string, blocks int) {
	for i := range o.demands {
		if o.demands[i].pool == pool {
			if o.demands[i].blocks != blocks {
				o.busy = nil
			}
			o.demands[i].blocks = blocks
			return
		}
	}
	o.demands = append(o.demands, demand{pool: pool, blocks: blocks})
}

// Pin says which addresses of pinned pools, and which very blocks of others, the node is to own.
func (o *Owner) Pin(all []Pin) {
	isSame := func(a, b Pin) bool { return slices.Equal(a, b) }
	if !slices.EqualFunc(o.pins, all, isSame) {
		o.pins, o.busy = all, nil
	}
}

// TakenBy returns the entry because of which this node could not claim a block. Its revision is zero if there is none.
func (o *Owner) TakenBy(h Holding) Entry {
	for _, e := range o.taken {
		if e.Key.Pool == h.Pool && e.Key.Block == h.Block {
			return e
		}
	}
	return Entry{}
}

// LeasesChanged says that what had leases may have none any more.
func (o *Owner) LeasesChanged() { o.busy = nil }

// Cede gives a part that is not in use to another node, of whose epoch this is the revision.
func (o *Owner) Cede(pool, node string, epoch int64) {
	o.busy = nil
	o.ask = &leaving{Holding: Holding{Pool: pool}, to: node, epoch: epoch}
}

// Ceding reports whether a part is on its way to another node, or a block goes back.
func (o *Owner) Ceding() bool { return o.ask != nil || o.leave != nil }

// PublishAgain has the grant written again, as soon as it is sure that the node owns what it has. It reports whether that is news.
func (o *Owner) PublishAgain() (isNews bool) {
	isNews = !o.isDue
	o.isDue = true
	return isNews
}

// Changed says that entries of the store that concern the node may have changed, or that it is time to look again.
func (o *Owner) Changed() {
	if o.doing != nil {
		o.stale = true
		return
	}
	o.forgetView()
	o.refusal, o.stuck, o.busy, o.taken = nil, nil, nil, nil
	for i := range o.demands {
		o.demands[i].probed = 0
	}
}

// Refused says why the node gets no addresses. It is nil if it may have some.
func (o *Owner) Refused() *Refusal { return o.refusal }

// Standing returns what every transaction in the node's name compares. Ok is false while the node may write nothing.
func (o *Owner) Standing() (epoch Compare, ok bool) {
	if o.refusal != nil || o.view == nil || !o.fenced() {
		return Compare{}, false
	}
	return Compare{o.epochKey(), o.view.epoch.Revision}, true
}

// Wants reports whether the node wants more blocks of a pool than it has.
func (o *Owner) Wants(pool string) bool { return len(o.granted.of(pool)) < o.wanted(pool) }

// Exhausted reports whether a pool has no free block, as far as the node knows.
func (o *Owner) Exhausted(pool string) bool {
	if o.view == nil {
		return false
	}
	p, known := o.pool(pool)
	i := slices.IndexFunc(o.demands, func(d demand) bool { return d.pool == pool })
	if !known || i < 0 {
		return false
	}
	return len(o.candidates(&o.demands[i], p, 1)) == 0
}

// Conflict returns a holding of this node that another node has in a store that was restored. Nil: there is none.
func (o *Owner) Conflict() *Holding { return o.stuck }

// Journal returns what the disk has.
func (o *Owner) Journal() Journal { return o.journal }

// Pools returns the pools of the cluster. There are none before the store has said which, and where the node is
// refused.
func (o *Owner) Pools() []Pool {
	if o.view == nil {
		return nil
	}
	return o.view.config.Value.Config.Pools
}

// Granted returns what the grant has.
func (o *Owner) Granted() []Holding { return o.granted }

// Owned returns what the node owns, whether the grant has it yet or not.
func (o *Owner) Owned() []Holding {
	all := o.granted
	if o.view != nil {
		for _, h := range o.view.mine {
			all = all.with(h)
		}
	}
	return all
}

// Next returns what is to be done. It returns the same until a method takes what came of it.
func (o *Owner) Next() Action {
	if o.doing == nil {
		o.doing = o.decide()
	}
	if o.doing == nil {
		return nil
	}
	return o.doing.action
}

// end takes the step that was done.
func (o *Owner) end() step {
	s := *o.doing
	o.doing = nil
	return s
}

// rest is after each answer: what happened in the meantime counts now.
func (o *Owner) rest() {
	if o.stale {
		o.stale = false
		o.Changed()
	}
}

// decide says what is next. The order of the cases is the order of a start.
func (o *Owner) decide() *step {
	switch {
	case o.refusal != nil:
		return o.withdrawAll()
	case o.view == nil:
		return &step{action: o.all(), kind: look}
	case o.isReclaimed() && holdings(o.granted).minus(o.view.mine).Parts != 0:
		return o.dropReclaimed()
	case o.view.readopt.Revision == 0 && o.restored():
		return &step{action: Txn{
			If:  []Compare{{Key{Kind: ReadoptKey}, 0}, {Key{Kind: ConfigKey}, o.view.config.Revision}},
			Put: []Pair{{Key: Key{Kind: ReadoptKey}}},
		}, kind: raise}
	case !o.fenced():
		return o.fence()
	case len(o.journal.Nonces) != 1 || o.journal.Epoch != o.view.epoch.Value.Epoch.N:
		j := o.journal
		j.Epoch, j.Nonces = o.view.epoch.Value.Epoch.N, []string{o.nonce}
		return &step{action: Save{j}, kind: save}
	}
	if s := o.publishDeadlines(); s != nil {
		return s
	}
	if s := o.say(); s != nil {
		return s
	}
	switch {
	case o.leave != nil:
		return o.giveAway()
	case o.view.readopt.Revision != 0:
		return o.assertGranted()
	}
	if s := o.adopt(); s != nil {
		return s
	}
	if s := o.withdraw(); s != nil {
		return s
	}
	return o.claimNext()
}

func (o *Owner) epochKey() Key { return Key{Kind: EpochKey, Node: o.journal.Node} }
func (o *Owner) nameKey() Key  { return Key{Kind: NameKey, Node: o.name} }
func (o *Owner) assertKey() Key {
	return Key{Kind: AssertKey, Node: o.journal.Node}
}

// withdrawAll takes everything out of the grant. A store without a cluster has lost it: what the node has is its own still,
// as while the store is away, and it has to say so when the store was restored.
func (o *Owner) withdrawAll() *step {
	if o.refusal.Reason == Unconfigured && len(o.granted) > 0 {
		return nil
	}
	if len(o.granted) == 0 && o.told != nil && *o.told == *o.refusal {
		return nil
	}
	return &step{action: Publish{Refusal: o.refusal}, kind: publish}
}

// fenced reports whether no write of an earlier agent of this node, and none of this agent with an unknown outcome,
// can change the store any more: they compare an earlier epoch. What the view says is all there is then. When the name of the
// node gets free that another one had in an older store, another epoch takes it.
func (o *Owner) fenced() bool {
	e := o.view.epoch
	return o.view.name.Revision != 0 && e.Revision != 0 && e.Value.Epoch.Nonce == o.nonce && e.Revision != o.burnt && !e.Value.Epoch.Reclaimed
}

// fence begins another epoch. The journal has the agent's nonce before, so that one who finds it in the store knows
// that it was this node.
func (o *Owner) fence() *step {
	if !slices.Contains(o.journal.Nonces, o.nonce) {
		j := o.journal
		j.Machine = cmp.Or(o.machine, j.Machine)
		j.Nonces = append(slices.Clone(j.Nonces), o.nonce)
		return &step{action: Save{j}, kind: save}
	}
	e := Epoch{N: o.journal.Epoch + 1, Name: o.name, Nonce: o.nonce}
	if was := o.view.epoch.Value.Epoch; was != nil {
		e.N = max(e.N, was.N+1)
	}
	t := Txn{
		If:  []Compare{{o.epochKey(), o.view.epoch.Revision}},
		Put: []Pair{{o.epochKey(), Value{Epoch: &e}}},

		Read: o.all(), // what the node owns cannot change unheard from now on
	}
	if o.view.name.Revision == 0 {
		t.If = append(t.If, Compare{o.nameKey(), 0})
		t.Put = append(t.Put, Pair{o.nameKey(), Value{Node: o.journal.Node}})
	}
	if o.says != nil {
		o.announce(&t, *o.says)
	}
	return &step{action: t, kind: fence}
}

// Committed takes the answer to a Txn.
func (o *Owner) Committed(r Outcome) {
	least := o.heard
	if r.Done && o.doing.kind == claim { // which wrote
		least++
	}
	if o.isBehind(r.Revision, least) || r.Store != o.view.store { // what was compared is of another history
		o.Unknown()
		return
	}
	defer o.rest()
	s := o.end()
	if r.Done && s.beat != nil {
		o.confirmBeat(s.beat)
	}
	if r.Done {
		o.view.revisions = append(slices.Clone(o.view.revisions), r.Revision)
	}
	switch s.kind {
	case fence:
		o.forgetView()
		if r.Done {
			o.take(r.Snapshot)
		}
	case say:
		if !r.Done {
			o.forgetView()
		}
	case claim:
		o.claimed(s.claims, r)
	case tellLeave:
		o.leave, o.block = nil, nil
		if r.Done {
			o.view.mine = o.view.mine.without(s.about)
		} else {
			o.forgetView()
		}
	case assert:
		o.block = nil
		if r.Done {
			o.view.mine = o.view.mine.with(s.about)
		} else {
			o.forgetView()
		}
	default:
		o.forgetView()
	}
}

// Unknown says that it is not known whether a Txn was done, or will be. Another epoch makes sure that it will not be.
func (o *Owner) Unknown() {
	defer o.rest()
	switch o.end().kind {
	case claim, tellLeave, assert, say:
		o.burnt = o.view.epoch.Revision
		o.leave = nil
	}
	o.forgetView()
}

// Saved says that a Save was done.
func (o *Owner) Saved() {
	defer o.rest()
	o.journal = o.doing.action.(Save).Journal
	o.end()
}

// Published says that a Publish was done, or if busy that it was not, because the holding that it takes away has
// leases.
func (o *Owner) Published(busy bool) {
	defer o.rest()
	p := o.doing.action.(Publish)
	o.end()
	switch {
	case busy:
		o.busy = o.busy.with(*p.Without)
		return
	case p.Without != nil:
		o.leave = &leaving{Holding: *p.Without}
		if o.ask != nil && o.ask.Pool == p.Without.Pool {
			o.leave.to, o.leave.epoch = o.ask.to, o.ask.epoch
			o.ask = nil
		}
	}
	o.granted, o.told, o.deadlines, o.isDue = p.Holdings, p.Refusal, p.Deadlines, false
}
