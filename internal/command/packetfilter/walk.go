package packetfilter

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
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
	toUnknown // a program in user space, or what is not understood, decides
	toTranslate
)

// A branch is one thing that a rule may do; if it does nothing, the next rule has its turn.
type branch struct {
	sure  tri // yes or maybe
	do    decision
	chain string // of toJump and toGoto
	why   string // of maybe and of toUnknown: what it depends on
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

	ends
}

// ends are the possible ends of a packet's way through one base chain.
type ends struct {
	accept, drop, unknown *end  // the latest rule of a kind
	uncertain             *end  // the first rule that may match or not
	accepted              exits // by accepts
	count                 int   // of rules that may end the way
	dropsDiffer           bool  // the drops are not all alike: a translation is one
}

// An end is where a walk may end.
type end struct {
	chain string
	rule  rule // nil: the policy
	why   string

	translates bool // of a drop: the packet goes elsewhere
	to         Translation
	mark       bits // of the packet there
}

// nameIn names the chain and the rule in a verdict.
func (e *end) nameIn(v *Verdict) {
	v.Jumped = e.chain
	if e.rule != nil {
		v.Rule, v.Number = e.rule.text(), e.rule.number()
	}
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
		w.unknown = &end{chain: name, why: "more than 16 jumps"}
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
			w.unknown = &end{chain: name, why: "there are too many rules to follow"}
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
	if b.sure == maybe && w.uncertain == nil {
		w.uncertain = at
	}
	before := w.mark
	switch b.do {
	case toAccept:
		w.count++
		w.accepted.add(w.mark)
		w.accept = at
	case toDrop, toTranslate:
		w.count++
		at.translates, at.to, at.mark = b.do == toTranslate, b.to, w.mark
		if w.through && w.drop != nil {
			w.dropsDiffer = w.dropsDiffer || w.drop.translates != at.translates || w.drop.to != at.to
		}
		w.drop = at
	case toUnknown:
		w.count++
		w.unknown = at
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

// base follows the packet through a base chain. A verdict other than Accepted names the rule that decides, or the chain
// whose policy does.
func (w *walk) base(c nft.BaseChain) Verdict {
	w.ends = ends{}
	reachesPolicy := w.follow(c.Name, 0)
	if reachesPolicy {
		w.count++
	}
	policyDrops := reachesPolicy && c.Drops
	policyAccepts := reachesPolicy && !c.Drops

	canDrop := w.drop != nil || policyDrops
	canAccept := w.accept != nil || policyAccepts
	dropsDiffer := w.dropsDiffer || policyDrops && w.drop != nil && w.drop.translates

	v := Verdict{Chain: c, Packet: w.p, Exact: w.count == 1}
	policy := &end{chain: c.Name}
	switch {
	case w.err != nil:
		policy.nameIn(&v)
	case canDrop && !canAccept && w.unknown == nil && !dropsDiffer:
		at := w.drop // the latest is the one that is sure
		if policyDrops {
			at = policy
		}
		w.dropped(&v, at)
	case canAccept && !canDrop && w.unknown == nil:
		v.Outcome = Accepted
		w.mark = w.markAfter(reachesPolicy)
		if v.Exact && w.accept != nil {
			w.accept.nameIn(&v)
		}
	default:
		w.mark = w.markAfter(reachesPolicy)
		if w.drop != nil && w.drop.translates {
			w.mark.join(w.drop.mark)
		}
		at := cmp.Or(w.uncertain, w.unknown, policy)
		at.nameIn(&v)
		v.Why = w.doubt(at, policyDrops)
	}
	return v
}

// dropped sets the outcome of a packet that is dropped, or translated, at one place.
func (w *walk) dropped(v *Verdict, at *end) {
	v.Outcome = Dropped
	if at.translates {
		v.Outcome, v.To, w.mark = Translated, at.to, at.mark
	}
	at.nameIn(v)
}

// markAfter returns the mark of a packet that the base chain lets through.
func (w *walk) markAfter(reachesPolicy bool) bits {
	out := w.accepted
	if reachesPolicy {
		out.add(w.mark)
	}
	if !out.any {
		return unknown(4)
	}
	return out.mark
}

// doubt says why a verdict is not sure.
func (w *walk) doubt(at *end, policyDrops bool) string {
	why := at.why
	if at.rule != nil && at.why != "" {
		why = "which depends on " + at.why
	}
	switch {
	case w.unknown == nil && policyDrops && w.drop == nil:
		why += "; else policy drop"
	case w.drop != nil && w.drop.rule != at.rule:
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
