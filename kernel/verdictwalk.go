package kernel

import "encoding/binary"

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
)

// A branch is one thing that a rule may do; if it does nothing, the next rule has its turn.
type branch struct {
	sure  tri // yes or maybe
	do    decision
	chain string // of toJump and toGoto
	why   string // of maybe and of toOthers: what it depends on
}

// A rule is one of a front end: nf_tables by netlink, or what iptables-save(8) says.
type rule interface {
	run(w *walk) []branch // of several that are not sure at most one is taken
	text() string         // in the words of the program that made it
	number() uint64       // its handle, if it has one
}

// A walk is a packet on its way through the rules of one hook. Where a rule cannot be decided both possibilities are
// followed, not as two walks, whose number would double with each such rule, but as one that gathers every end that
// is possible.
type walk struct {
	ns     *NS
	p      Packet
	mark   bits                              // meta mark, which rules set
	chains func(name string) ([]rule, error) // of the present table
	left   int                               // rules that may still be looked at
	err    error

	ip, th  bits    // the packet's headers
	machine machine // of the present rule, if it is one of nf_tables

	accept, drop, others, doubt *end // possible ends, the latest of a kind, and the first rule in doubt
	accepted                    bits // mark, over all accepts
}

// An end is where a walk may end.
type end struct {
	chain string
	rule  rule
	why   string
}

// The kernel follows 16 jumps, and refuses rules that could take more.
const mostJumps = 16

// follow walks through a chain, and reports whether the packet may come out at its end or by a return. The mark is
// then that of all ways out.
func (w *walk) follow(name string, depth int) (through bool) {
	var out bits
	leave := func() {
		if through {
			out.join(w.mark)
		} else {
			through, out = true, w.mark.clone()
		}
	}
	if depth > mostJumps {
		w.others = &end{chain: name, why: "more than 16 jumps"}
		return false
	}
	rules, err := w.chains(name)
	if err != nil {
		w.err = err
		return false
	}
	for _, r := range rules {
		if w.left--; w.left < 0 {
			w.others = &end{chain: name, why: "there are too many rules to follow"}
			return false
		}
		for _, b := range r.run(w) {
			at := &end{name, r, b.why}
			if b.sure == maybe && w.doubt == nil {
				w.doubt = at
			}
			before, sure := w.mark, b.sure == yes // nobody writes into a mark, see bits.join
			switch b.do {
			case toAccept:
				if w.accept == nil {
					w.accepted = w.mark.clone()
				}
				w.accepted.join(w.mark)
				w.accept = at
			case toDrop:
				w.drop = at
			case toOthers:
				w.others = at
			case toReturn:
				leave()
			case toJump:
				// What follows is reached by those that come back and, if it is not sure, by those that never went.
				if w.follow(b.chain, depth+1) {
					sure = false
				} else {
					w.mark = before
				}
			case toGoto:
				if w.follow(b.chain, depth+1) {
					leave()
				}
				w.mark = before
			}
			if sure || w.err != nil || w.left < 0 {
				w.mark = out
				return through
			}
			if b.sure != yes {
				w.mark.join(before)
			}
		}
		if w.err != nil {
			return false
		}
	}
	leave()
	w.mark = out
	return through
}

func newWalk(ns *NS, p Packet) *walk {
	w := &walk{ns: ns, p: p, mark: native(p.Mark), left: mostRules}
	w.ip, w.th = w.network(), w.transport()
	return w
}

// base walks through a base chain, and says what becomes of the packet there. Else than in an Accepted one, the
// verdict names its place.
func (w *walk) base(c BaseChain) (v Verdict) {
	w.accept, w.drop, w.others, w.doubt = nil, nil, nil, nil
	through := w.follow(c.Name, 0)
	drops, accepts := w.drop != nil || through && c.Drops, w.accept != nil || through && !c.Drops
	v = Verdict{Chain: c, Packet: w.p}
	at := &end{chain: c.Name}
	switch {
	case w.err != nil:
	case drops && !accepts && w.others == nil:
		v.Outcome = Dropped
		if w.drop != nil && !(through && c.Drops) { // the last one is that which is sure
			at = w.drop
		}
	case accepts && !drops && w.others == nil:
		v.Outcome = Accepted
		if w.accept != nil && through {
			w.mark.join(w.accepted)
		} else if w.accept != nil {
			w.mark = w.accepted
		}
		return v
	default:
		if at = w.doubt; at == nil {
			at = w.others
		}
		v.Why = at.why
		if at.rule != nil && at.why != "" {
			v.Why = "which depends on " + at.why
		}
		if w.others == nil && through && c.Drops && w.drop == nil {
			v.Why += "; else policy drop"
		} else if w.drop != nil && w.drop.rule != at.rule {
			v.Why += "; else perhaps dropped by chain " + w.drop.chain
		}
	}
	v.Jumped = at.chain
	if at.rule != nil {
		v.Rule, v.Handle = at.rule.text(), at.rule.number()
	}
	return v
}

// bits are bytes of which each bit may be unknown. An unknown bit of v is 0.
type bits struct{ v, known []byte }

func exactly(v ...byte) bits {
	b := bits{v, make([]byte, len(v))}
	for i := range b.known {
		b.known[i] = 0xff
	}
	return b
}

func unknown(size int) bits { return bits{make([]byte, size), make([]byte, size)} }

// native is a number that the kernel keeps in the host's order.
func native(n uint32) bits { return exactly(binary.NativeEndian.AppendUint32(nil, n)...) }

func (b bits) clone() bits {
	return bits{append([]byte(nil), b.v...), append([]byte(nil), b.known...)}
}

// all reports whether every bit is known.
func (b bits) all() bool {
	for _, k := range b.known {
		if k != 0xff {
			return false
		}
	}
	return true
}

// join forgets the bits that differ from c's.
func (b *bits) join(c bits) {
	if len(b.v) != len(c.v) {
		*b = unknown(max(len(b.v), len(c.v)))
		return
	}
	*b = b.clone()
	for i := range b.v {
		b.known[i] &= c.known[i] &^ (b.v[i] ^ c.v[i])
		b.v[i] &= b.known[i]
	}
}

// least and most are the bounds of what b may be, as a number in network order.
func (b bits) least() []byte { return b.v }

func (b bits) most() []byte {
	m := make([]byte, len(b.v))
	for i := range m {
		m[i] = b.v[i] | ^b.known[i]
	}
	return m
}

// is compares with a value of the same length, or a prefix.
func (b bits) is(v []byte) tri {
	t := yes
	for i := range v {
		switch {
		case i >= len(b.v):
			return no
		case (b.v[i]^v[i])&b.known[i] != 0:
			return no
		case b.known[i] != 0xff:
			t = maybe
		}
	}
	return t
}

// within compares with a range, ends included.
func (b bits) within(from, to []byte) tri {
	least, most := string(b.least()), string(b.most())
	switch {
	case most < string(from) || least > string(to):
		return no
	case least >= string(from) && most <= string(to):
		return yes
	}
	return maybe
}

// masked is b & mask, bit for bit.
func (b bits) masked(mask []byte) bits {
	c := b.clone()
	for i := range c.v {
		if i < len(mask) {
			c.v[i] &= mask[i]
			c.known[i] |= ^mask[i]
		}
	}
	return c
}

// any reports whether any bit of mask is set.
func (b bits) any(mask []byte) tri {
	m := b.masked(mask)
	return m.is(make([]byte, len(b.v))).not(true)
}
