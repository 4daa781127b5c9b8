package packetfilter

import (
	"bytes"
	"encoding/binary"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/nft"
)

// A tri is what is known of a condition.
type tri uint8

const (
	no tri = iota
	maybe
	yes
)

// not is the negation, if inv. A conjunction is min, a disjunction max.
func (t tri) not(inv bool) tri {
	if inv {
		return yes - t
	}
	return t
}

func known(b bool) tri {
	if b {
		return yes
	}
	return no
}

// A decision is what a rule does with a packet that it matches.
type decision uint8

const (
	toAccept decision = iota + 1
	toDrop
	toJump
	toGoto
	toReturn
	toOthers // a program in user space, or what is not understood, decides
	toTranslate
)

// A branch is one thing that a rule may do; if it does nothing, the next rule has its turn.
type branch struct {
	sure  tri // yes or maybe
	do    decision
	chain string // of toJump and toGoto
	why   string // of maybe and of toOthers: what it depends on
	to    Translation
}

// A rule is one of nf_tables or of legacy iptables.
type rule interface {
	run(w *walk) []branch // of several that are not sure at most one is taken
	text() string         // in nft(8)'s words
	number() uint64       // its handle in nf_tables, or its place in a chain of legacy iptables
}

// A walk is a packet on its way through the rules of one hook. Where a rule cannot be decided both possibilities are
// followed, not as two walks, whose number would double with each such rule, but as one that gathers every end that
// is possible.
type walk struct {
	ns *kernel.NS
	p  Packet

	pf         byte // the family that rules are called for; that of the packet, or unix.NFPROTO_BRIDGE
	hook       int
	through    bool // see Through: all translations count, and which rule decides
	translates bool // the hook is one where destinations are translated
	early      bool // conntrack has not looked at the packet yet
	untracked  tri  // conntrack is not to look at it
	entered    hook // the base chain that is followed
	ctWritten  bool // a rule has written a mark or a label to conntrack's entry

	mark   bits                              // meta mark, which rules set
	chains func(name string) ([]rule, error) // of the present table
	left   int                               // rules that may still be looked at
	err    error

	ll, ip, th bits    // the packet's headers
	machine    machine // of the present rule, if it is one of nf_tables

	accept, drop, others, doubt *end // possible ends, the latest of a kind, and the first rule in doubt
	accepted                    bits // mark, over all accepts
	ends                        int  // how many there are
	mixed                       bool // drops are not all alike: a translation is one
}

// An end is where a walk may end.
type end struct {
	chain string
	rule  rule
	why   string

	translates bool // of a drop: the packet goes elsewhere
	to         Translation
	mark       bits // of the packet there
}

const (
	mostJumps = 16    // that the kernel follows; it refuses rules that could take more
	mostRules = 50000 // that are looked at for one packet
)

func newWalk(ns *kernel.NS, p Packet) *walk {
	w := &walk{ns: ns, p: p, mark: native(p.Mark), left: mostRules, untracked: p.untracked}
	if p.anyMark {
		w.mark = unknown(4)
	}
	w.pf = w.family()
	w.headers()
	return w
}

// Exits are the ways out of a chain, at its end or by a return, and the mark that a packet may have on all of them.
type exits struct {
	any  bool
	mark bits
}

func (e *exits) add(mark bits) {
	if e.any {
		e.mark.join(mark)
	} else {
		e.any, e.mark = true, mark
	}
}

// follow walks through a chain, and reports whether the packet may come out of it.
func (w *walk) follow(name string, depth int) (through bool) {
	if depth > mostJumps {
		w.others = &end{chain: name, why: "more than 16 jumps"}
		w.alter()
		return false
	}
	rules, err := w.chains(name)
	if err != nil {
		w.err = err
		return false
	}
	var out exits
	for _, r := range rules {
		if w.left--; w.left < 0 {
			w.others = &end{chain: name, why: "there are too many rules to follow"}
			w.alter()
			return false
		}
		tracked := w.untracked != yes
		branches := r.run(w)
		if tracked && w.untracked == yes {
			w.p.exempt = &Verdict{Chain: w.entered.BaseChain, Legacy: w.entered.legacy(), Jumped: name, Rule: r.text(),
				Number: r.number()}
		}
		for _, b := range branches {
			before := w.mark
			if w.take(b, &end{chain: name, rule: r, why: b.why}, &out, depth) || w.err != nil || w.left < 0 {
				w.mark = out.mark
				return out.any
			}
			if b.sure != yes {
				w.mark.join(before)
			}
		}
		if w.err != nil {
			return false
		}
	}
	out.add(w.mark)
	w.mark = out.mark
	return true
}

// take follows what a rule does, and reports whether no packet comes to the next one.
func (w *walk) take(b branch, at *end, out *exits, depth int) (all bool) {
	if b.sure == maybe && w.doubt == nil {
		w.doubt = at
	}
	before := w.mark
	switch b.do {
	case toAccept, toDrop, toTranslate, toOthers:
		w.ends++
	}
	switch b.do {
	case toAccept:
		if w.accept == nil {
			w.accepted = w.mark
		}
		w.accepted.join(w.mark)
		w.accept = at
	case toDrop, toTranslate:
		at.translates, at.to, at.mark = b.do == toTranslate, b.to, w.mark
		w.mixed = w.mixed || w.through && w.drop != nil && (w.drop.translates != at.translates || w.drop.to != at.to)
		w.drop = at
	case toOthers:
		w.others = at
	case toReturn:
		out.add(w.mark)
	case toJump:
		// What follows is reached by those that come back and, if it is not sure, by those that never went.
		if w.follow(b.chain, depth+1) {
			return false
		}
		w.mark = before
	case toGoto:
		if w.follow(b.chain, depth+1) {
			out.add(w.mark)
		}
		w.mark = before
	}
	return b.sure == yes
}

// base walks through a base chain, and says what becomes of the packet there. Else than in an Accepted one, the
// verdict names its place.
func (w *walk) base(c nft.BaseChain) (v Verdict) {
	w.accept, w.drop, w.others, w.doubt, w.ends, w.mixed = nil, nil, nil, nil, 0, false
	through := w.follow(c.Name, 0)
	if through {
		w.ends++
	}
	drops, accepts := w.drop != nil || through && c.Drops, w.accept != nil || through && !c.Drops
	v = Verdict{Chain: c, Packet: w.p, Exact: w.ends == 1}
	at := &end{chain: c.Name}
	w.mixed = w.mixed || w.drop != nil && w.drop.translates && through && c.Drops
	switch {
	case w.err != nil:
	case drops && !accepts && w.others == nil && !w.mixed:
		v.Outcome = Dropped
		if w.drop != nil && !(through && c.Drops) { // the last one is that which is sure
			at = w.drop
		}
		if at.translates {
			v.Outcome, v.To, w.mark = Translated, at.to, at.mark
		}
	case accepts && !drops && w.others == nil:
		v.Outcome = Accepted
		if w.accept != nil && through {
			w.mark.join(w.accepted)
		} else if w.accept != nil {
			w.mark = w.accepted
		}
		if v.Exact && w.accept != nil {
			v.Jumped, v.Rule, v.Number = w.accept.chain, w.accept.rule.text(), w.accept.rule.number()
		}
		return v
	default:
		switch {
		case !through && w.accept != nil:
			w.mark = w.accepted
		case !through:
			w.mark = unknown(4)
		case w.accept != nil:
			w.mark.join(w.accepted)
		}
		if w.drop != nil && w.drop.translates {
			w.mark.join(w.drop.mark)
		}
		if at = w.doubt; at == nil {
			at = w.others
		}
		if at == nil {
			at = &end{chain: c.Name}
		}
		v.Why = w.doubtful(at, through && c.Drops)
	}
	v.Jumped = at.chain
	if at.rule != nil {
		v.Rule, v.Number = at.rule.text(), at.rule.number()
	}
	return v
}

// doubtful says why a verdict is not sure. Drops tells that what no rule ends is dropped by the chain's policy.
func (w *walk) doubtful(at *end, drops bool) string {
	why := at.why
	if at.rule != nil && at.why != "" {
		why = "which depends on " + at.why
	}
	if w.others == nil && drops && w.drop == nil {
		why += "; else policy drop"
	} else if w.drop != nil && w.drop.rule != at.rule {
		why += "; else perhaps dropped by chain " + w.drop.chain
	}
	return why
}

// bits are bytes of which each bit may be unknown. An unknown bit of v is 0.
type bits struct{ v, known []byte }

func exactly(v ...byte) bits { return bits{v, bytes.Repeat([]byte{0xff}, len(v))} }

func unknown(size int) bits { return bits{make([]byte, size), make([]byte, size)} }

// native is a number that the kernel keeps in the host's order.
func native(n uint32) bits { return exactly(binary.NativeEndian.AppendUint32(nil, n)...) }

// all reports whether every bit is known.
func (b bits) all() bool { return len(bytes.Trim(b.known, "\xff")) == 0 }

// join becomes unknown unless c is the same.
func (b *bits) join(c bits) {
	if !bytes.Equal(b.v, c.v) || !bytes.Equal(b.known, c.known) {
		*b = unknown(len(c.v))
	}
}

// is compares with a value of the same length, or a prefix.
func (b bits) is(v []byte) tri {
	t := yes
	for i := range v {
		switch {
		case i >= len(b.v), (b.v[i]^v[i])&b.known[i] != 0:
			return no
		case b.known[i] != 0xff:
			t = maybe
		}
	}
	return t
}

// within compares with a range, ends included, as numbers in network order.
func (b bits) within(from, to []byte) tri {
	if !b.all() {
		return maybe
	}
	return known(bytes.Compare(b.v, from) >= 0 && bytes.Compare(b.v, to) <= 0)
}

// masked is b & mask ^ xor, bit for bit.
func (b bits) masked(mask, xor []byte) bits {
	c := bits{bytes.Clone(b.v), bytes.Clone(b.known)}
	for i := range min(len(c.v), len(mask), len(xor)) {
		c.known[i] |= ^mask[i]
		c.v[i] = (c.v[i]&mask[i] ^ xor[i]) & c.known[i]
	}
	return c
}

// under is b & mask.
func (b bits) under(mask []byte) bits { return b.masked(mask, make([]byte, len(mask))) }

// any reports whether any bit of mask is set.
func (b bits) any(mask []byte) tri {
	return b.under(mask).is(make([]byte, len(b.v))).not(true)
}
