package blocks

import "slices"

// A view is what the store said.
type view struct {
	store                        string
	revisions                    []int64 // of what was read, and of this node's own changes since
	config, readopt, epoch, name Entry
	assertion                    Entry
	mine                         holdings
}

// forgetView has the store read before anything else is done.
func (o *Owner) forgetView() { o.view, o.block = nil, nil }

// Knows reports whether what the owner knows of the store has the changes of a revision: it read them, or made them.
func (o *Owner) Knows(revision int64) bool {
	return o.view != nil && (revision <= o.view.revisions[0] || slices.Contains(o.view.revisions, revision))
}

// all is all that concerns the node.
func (o *Owner) all() Read {
	return Read{Keys: []Key{{Kind: ConfigKey}, {Kind: ReadoptKey}, o.epochKey(), o.nameKey(), o.assertKey()}, Mine: o.journal.Node}
}

// Saw takes the answer to a Read.
func (o *Owner) Saw(s Snapshot) {
	defer o.rest()
	isBehind := o.isBehind(s.Revision, o.heard)
	if step := o.end(); step.kind == lookAtBlock {
		if isBehind || s.Store != o.view.store {
			o.forgetView()
			return
		}
		o.block = &s
		return
	}
	o.take(s)
}

// take takes what the store says of all that concerns the node.
func (o *Owner) take(s Snapshot) {
	v := &view{store: s.Store, revisions: []int64{s.Revision}, config: s.Of(Key{Kind: ConfigKey}), readopt: s.Of(Key{Kind: ReadoptKey}),
		epoch: s.Of(o.epochKey()), name: s.Of(o.nameKey()), assertion: s.Of(o.assertKey())}
	for _, e := range s.Entries {
		if e.Key.Kind == MineKey {
			v.mine = v.mine.with(Holding{e.Key.Pool, e.Key.Block, e.Value.Parts})
		}
	}
	if v.readopt.Revision != 0 {
		o.isOlder = false // all know it
	}
	o.refusal = o.judge(v)
	if o.refusal == nil {
		o.view = v
	}
}

// judge says why the node gets no addresses, by what the store said.
func (o *Owner) judge(v *view) *Refusal {
	e := v.epoch.Value.Epoch
	switch {
	case v.config.Revision == 0:
		return &Refusal{Reason: Unconfigured}
	case o.machine != "" && o.journal.Machine != "" && o.machine != o.journal.Machine:
		return &Refusal{Reason: OtherMachine}
	case e == nil && len(o.granted) > 0: // the store is older, and the node that it knows by this name may be an earlier one
		return nil
	case e == nil && v.name.Revision != 0 && v.name.Value.Node != o.journal.Node:
		return &Refusal{Reason: NameTaken, Node: v.name.Value.Node}
	case e == nil: // the node has not joined
		return nil
	case e.Gone:
		return &Refusal{Reason: Forgotten}
	case !slices.Contains(o.journal.Nonces, e.Nonce) && e.N >= o.journal.Epoch:
		return &Refusal{Reason: Superseded}
	}
	return nil
}
