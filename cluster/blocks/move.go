package blocks

import "slices"

// adopt grants what the store says that the node owns, as far as it wants it. That is what another node ceded, or
// what an agent claimed that ended before it published. Nothing else can be on its way: see fenced. What is not
// wanted leaves.
func (o *Owner) adopt() *step {
	all := o.granted
	for _, h := range o.view.mine {
		h.Parts &^= o.granted.parts(h)
		switch {
		case h.Parts == 0:
		case all.parts(h) == 0 && !o.lacks(h, all):
			o.leave = &leaving{Holding: h}
			return o.giveAway()
		default:
			all = all.with(h)
		}
	}
	if all.minus(o.granted).Parts == 0 && !o.isDue {
		return nil
	}
	return o.publish(all)
}

// lacks reports whether the node wants a block beside all that it has.
func (o *Owner) lacks(h Holding, all holdings) bool {
	return o.pinned(h) || !o.isPinned(h.Pool) && len(all.of(h.Pool)) < o.wanted(h.Pool)
}

func (o *Owner) isPinned(pool string) bool {
	p, _ := o.pool(pool)
	return p.Pinned
}

// pinned reports whether a container of the node has or wants an address by name, or the node wants this very block.
func (o *Owner) pinned(h Holding) bool {
	return slices.ContainsFunc(o.pins, func(p Pin) bool { return slices.Contains(p, h) })
}

func (o *Owner) wanted(pool string) int {
	for _, d := range o.demands {
		if d.pool == pool {
			return d.blocks
		}
	}
	return 0
}

// withdraw takes something out of the grant that no container has, to give it back or to another node.
func (o *Owner) withdraw() *step {
	if o.ask != nil {
		for _, h := range o.granted.of(o.ask.Pool) {
			if s := o.withdrawPart(h); s != nil {
				return s
			}
		}
		o.ask = nil
	}
	for _, h := range slices.Backward(o.granted) {
		isExcess := !o.lacks(h, o.granted.without(h))
		if isExcess && o.busy.parts(h) == 0 {
			return o.publishWithout(h)
		}
	}
	return nil
}

// withdrawPart takes the last part of h that has no lease. The first part of a block that is divided has the gateway of
// the node's containers, and stays.
func (o *Owner) withdrawPart(h Holding) *step {
	p, _ := o.pool(h.Pool)
	for n := range 8 {
		part := h
		part.Parts &= 1 << (7 - n)
		isGateway := part.Parts == 1 && p.all() != 1
		if part.Parts != 0 && !isGateway && o.busy.parts(part)&part.Parts == 0 {
			return o.publishWithout(part)
		}
	}
	return nil
}

func (o *Owner) publish(all holdings) *step {
	return &step{action: Publish{Holdings: all, Deadlines: o.sure}, kind: publish}
}

func (o *Owner) publishWithout(h Holding) *step {
	return &step{action: Publish{Holdings: o.granted.without(h), Without: &h, Deadlines: o.sure}, kind: publish, about: h}
}

// lookAtBlock reads the entries of the block of h.
func (o *Owner) lookAtBlock(h Holding) *step {
	return &step{action: Read{Keys: []Key{o.blockKey(h), mineKey(o.journal.Node, h)}}, kind: lookAtBlock, about: h}
}

// giveAway tells the store what left the grant. What others of the block own is of no use without the rest, so one of them
// gets it.
func (o *Owner) giveAway() *step {
	if o.block == nil {
		return o.lookAtBlock(o.leave.Holding)
	}
	if other := o.coOwner(); other != "" {
		epoch := o.block.Of(Key{Kind: EpochKey, Node: other})
		if epoch.Revision == 0 {
			s := o.lookAtBlock(o.leave.Holding)
			s.action = Read{Keys: append(s.action.(Read).Keys, epoch.Key)}
			return s
		}
		if !epoch.Value.Epoch.Gone {
			o.leave.to, o.leave.epoch = other, epoch.Revision
		}
	}
	block, own := o.block.Of(o.blockKey(o.leave.Holding)), o.block.Of(mineKey(o.journal.Node, o.leave.Holding))
	owners := slices.Clone(block.Value.Owners)
	mine, theirs := Parts(0), Parts(0)
	for n, owner := range owners {
		part := Parts(1 << n)
		if owner == o.journal.Node && o.leave.Parts&part != 0 {
			owners[n] = o.leave.to
		}
		switch owners[n] {
		case "":
		case o.journal.Node:
			mine |= part
		case o.leave.to:
			theirs |= part
		}
	}
	// A store that was restored gives the same revisions again, but not to an entry that only this node writes.
	t := Txn{If: []Compare{{block.Key, block.Revision}, {own.Key, own.Revision}, {o.epochKey(), o.view.epoch.Revision}}}
	t.setBlock(block.Key, owners)
	t.setMine(own.Key, mine)
	if o.leave.to != "" {
		t.If = append(t.If, Compare{Key{Kind: EpochKey, Node: o.leave.to}, o.leave.epoch})
		t.setMine(mineKey(o.leave.to, o.leave.Holding), theirs)
	}
	return &step{action: t, kind: tellLeave, about: o.leave.Holding}
}

// coOwner returns another node that owns a part of the block of which a part goes back. While nodes say what they have, that
// may be wrong. With the first part, the other node's containers would get another gateway, and the next containers the
// address of the former one; so that part waits until the others go back, too.
func (o *Owner) coOwner() string {
	hasFirst := o.leave.Parts&1 != 0
	if o.leave.to != "" || o.view.readopt.Revision != 0 || hasFirst {
		return ""
	}
	for _, owner := range o.block.Of(o.blockKey(o.leave.Holding)).Value.Owners {
		if owner != "" && owner != o.journal.Node {
			return owner
		}
	}
	return ""
}

// setBlock writes who owns the parts of a block. A block without an owner has no entry.
func (t *Txn) setBlock(k Key, owners []string) {
	if slices.ContainsFunc(owners, func(owner string) bool { return owner != "" }) {
		t.Put = append(t.Put, Pair{k, Value{Owners: owners}})
	} else {
		t.Delete = append(t.Delete, k)
	}
}

// setMine writes which parts a node owns.
func (t *Txn) setMine(k Key, parts Parts) {
	if parts != 0 {
		t.Put = append(t.Put, Pair{k, Value{Parts: parts}})
	} else {
		t.Delete = append(t.Delete, k)
	}
}

// MostAtOnce is how many blocks of a pool one transaction has at most: etcd compares and writes 128 entries in one.
const MostAtOnce = 16

// claimNext claims free blocks of all pools of which the node wants more, in one transaction. If one of the pools has none, and
// the node has nothing of that pool's family, nothing is claimed: a container needs an address of each family. What the node has
// may be a part of a block, which another node gave it: then it claims the other family alone.
func (o *Owner) claimNext() *step {
	for _, pin := range o.pins {
		if all := o.missing(pin); len(all) > 0 {
			return o.claim(all)
		}
	}
	var all []Holding
	for i := range o.demands {
		d := &o.demands[i]
		p, known := o.pool(d.pool)
		if !known || len(o.granted.of(d.pool)) >= d.blocks {
			continue
		}
		free := o.candidates(d, p, min(d.blocks-len(o.granted.of(d.pool)), MostAtOnce))
		if len(free) == 0 && !o.has(p.Prefix.Addr().Is4()) {
			return nil
		}
		all = append(all, free...)
	}
	if len(all) == 0 {
		return nil
	}
	return o.claim(all)
}

// has reports whether containers of the node can get addresses of a family.
func (o *Owner) has(is4 bool) bool {
	return slices.ContainsFunc(o.granted, func(h Holding) bool { return h.Block.Addr().Is4() == is4 && !o.isPinned(h.Pool) })
}

// missing returns what of a pin the node has not. There is nothing if it cannot have all of it.
func (o *Owner) missing(pin Pin) (all []Holding) {
	for _, h := range pin {
		if _, known := o.pool(h.Pool); !known || o.TakenBy(h).Revision != 0 {
			return nil
		}
		if o.granted.parts(h) == 0 {
			all = append(all, h)
		}
	}
	return all
}

// candidates returns so many blocks of a pool that may be free, or fewer.
func (o *Owner) candidates(d *demand, p Pool, most int) (list []Holding) {
	order := p.order(o.journal.Node)
	for n := d.probed; n < p.count() && len(list) < most; n++ {
		h := Holding{p.Name, p.block(order(n)), p.all()}
		isTaken := o.Taken != nil && o.Taken(h) || o.TakenBy(h).Revision != 0
		if !isTaken && o.view.mine.parts(h) == 0 {
			list = append(list, h)
		}
		if len(list) == 0 {
			d.probed = n + 1
		}
	}
	return list
}

// claim claims blocks if all are free, the node may write, and the store was not restored.
func (o *Owner) claim(all []Holding) *step {
	t := Txn{If: []Compare{{o.epochKey(), o.view.epoch.Revision}, {Key{Kind: ReadoptKey}, 0},
		{Key{Kind: ConfigKey}, o.view.config.Revision}}}
	for _, h := range all {
		p, _ := o.pool(h.Pool)
		owners := make([]string, p.Parts)
		for n := range owners {
			owners[n] = o.journal.Node
		}
		t.If = append(t.If, Compare{o.blockKey(h), 0}, Compare{graveKey(h.Pool, h.Block), 0})
		t.setBlock(o.blockKey(h), owners)
		t.setMine(mineKey(o.journal.Node, h), h.Parts)
	}
	s := &step{kind: claim, about: all[0], claims: all}
	if p := o.promises(all...); len(p) > 0 { // a node that ends now loses these, too
		s.beat = &beat{o.now, p}
		t.setBeat(o.journal.Node, p)
	}
	s.action = t
	return s
}

// claimed takes the answer to a claim. Where a block was not free, another one is tried.
func (o *Owner) claimed(all []Holding, r Outcome) {
	if r.Done {
		for _, h := range all {
			o.view.mine = o.view.mine.with(h)
		}
		return
	}
	taken := slices.DeleteFunc(slices.Clone(r.Seen), func(e Entry) bool {
		return e.Key.Kind != BlockKey && e.Key.Kind != GraveKey
	})
	if len(taken) == 0 {
		o.forgetView()
		return
	}
	o.taken = slices.Concat(o.taken, taken)
}

// assertGranted makes a store that was restored say what the grant says. No node claims in the meantime. What the
// store has and the grant has not was given back since the copy was made, or nothing uses it.
func (o *Owner) assertGranted() *step {
	if extra := o.view.mine.minus(o.granted); extra.Parts != 0 {
		o.leave = &leaving{Holding: extra}
		return o.giveAway()
	}
	h := o.granted.minus(o.view.mine)
	if h.Parts == 0 {
		return o.assertAll()
	}
	p, known := o.pool(h.Pool)
	if !known || o.stuck != nil {
		return nil
	}
	if o.block == nil {
		return o.lookAtBlock(h)
	}
	block := o.block.Of(o.blockKey(h))
	owners := slices.Clone(block.Value.Owners)
	if owners == nil {
		owners = make([]string, p.Parts)
	}
	for n := range owners {
		switch {
		case h.Parts&(1<<n) == 0:
		case owners[n] != "":
			o.stuck = &h
			return nil
		default:
			owners[n] = o.journal.Node
		}
	}
	t := Txn{If: []Compare{{block.Key, block.Revision}, {o.epochKey(), o.view.epoch.Revision},
		{Key{Kind: ReadoptKey}, o.view.readopt.Revision}}}
	t.setBlock(block.Key, owners)
	t.setMine(mineKey(o.journal.Node, h), h.Parts|o.view.mine.parts(h))
	return &step{action: t, kind: assert, about: h}
}

// assertAll says that the store knows all that the node has, so that an administrator may end the readoption.
func (o *Owner) assertAll() *step {
	now := Readoption{Store: o.view.store, Revision: o.view.readopt.Revision}
	if said := o.view.assertion.Value.Readoption; said != nil && *said == now {
		return nil
	}
	t := Txn{
		If:  []Compare{{o.epochKey(), o.view.epoch.Revision}, {Key{Kind: ReadoptKey}, now.Revision}},
		Put: []Pair{{o.assertKey(), Value{Readoption: &now}}},
	}
	return &step{action: t, kind: assertAll}
}
