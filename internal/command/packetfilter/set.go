package packetfilter

import (
	"bytes"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// What x/sys lacks names for.
const (
	setDescConcat      = 2  // NFTA_SET_DESC_CONCAT
	setFieldLen        = 1  // NFTA_SET_FIELD_LEN
	setElemKeyEnd      = 10 // NFTA_SET_ELEM_KEY_END
	setElemExpressions = 11 // NFTA_SET_ELEM_EXPRESSIONS
	setElemCatchall    = 2  // NFT_SET_ELEM_CATCHALL, of Linux 5.13
)

// An nftSet is a set, a map or a verdict map.
type nftSet struct {
	bounds         bool  // the elements are where intervals begin and end
	keyLen, length int   // of the data, 0 for verdicts
	fields         []int // lengths of the parts of a concatenation with intervals
	list           []nftElem
	size           int // how many elements it has room for, 0 if that is not said
}

// An nftElem is an element, or one end of an interval.
type nftElem struct {
	key, end []byte // end is the last key of an interval in a concatenation, and nil of all else
	data     []byte // NFTA_SET_ELEM_DATA
	flags    uint32
	counts   bool // it has a state of its own that may keep it from matching: a limit
}

// set reads a set when a rule first asks for it.
func (t *nftTable) set(name string) (*nftSet, error) {
	if s := t.sets[name]; s != nil {
		return s, nil
	}
	b, err := t.conn.RawSet(t.Table, name)
	if err != nil {
		return nil, err
	}
	s := &nftSet{keyLen: int(min(attr32(b, unix.NFTA_SET_KEY_LEN), 64))}
	if attr32(b, unix.NFTA_SET_DATA_TYPE) != unix.NFT_DATA_VERDICT&0xffffffff {
		s.length = int(min(attr32(b, unix.NFTA_SET_DATA_LEN), 64))
	}
	s.size = int(attr32(b, unix.NFTA_SET_DESC, unix.NFTA_SET_DESC_SIZE))
	netlink.EachAttr(attr(b, unix.NFTA_SET_DESC, setDescConcat), func(_ uint16, v []byte) {
		s.fields = append(s.fields, int(attr32(v, setFieldLen)))
	})
	s.bounds = hasIntervals(b) && len(s.fields) < 2
	t.sets[name] = s
	return s, t.conn.RawElements(t.Table, name, func(v []byte) {
		e := nftElem{
			key:   bytes.Clone(value(v, unix.NFTA_SET_ELEM_KEY)),
			end:   bytes.Clone(value(v, setElemKeyEnd)),
			data:  bytes.Clone(attr(v, unix.NFTA_SET_ELEM_DATA)),
			flags: attr32(v, unix.NFTA_SET_ELEM_FLAGS),
		}
		state := func(expr []byte) {
			e.counts = e.counts || expr != nil && attrText(expr, unix.NFTA_EXPR_NAME) != "counter"
		}
		state(attr(v, unix.NFTA_SET_ELEM_EXPR))
		netlink.EachAttr(attr(v, setElemExpressions), func(_ uint16, expr []byte) { state(expr) })
		s.list = append(s.list, e)
	})
}

func hasIntervals(set []byte) bool {
	return attr32(set, unix.NFTA_SET_FLAGS)&unix.NFT_SET_INTERVAL != 0
}

// find is the element that a key belongs to; nil if there is none.
func (s *nftSet) find(key []byte) (found *nftElem) {
	var star *nftElem
	for i := range s.list {
		e := &s.list[i]
		switch {
		case e.flags&setElemCatchall != 0:
			star = e
		case s.bounds:
			// The one next below the key decides, and of two with one key the beginning.
			if bytes.Compare(e.key, key) <= 0 && (found == nil || e.after(found)) {
				found = e
			}
		case e.end == nil && bytes.Equal(e.key, key), e.end != nil && s.overlaps(e, key, key):
			found = e
		}
	}
	if found == nil || found.ends() {
		return star
	}
	return found
}

func (e *nftElem) after(f *nftElem) bool {
	c := bytes.Compare(e.key, f.key)
	return c > 0 || c == 0 && !e.ends()
}

func (e *nftElem) ends() bool { return e.flags&unix.NFT_SET_ELEM_INTERVAL_END != 0 }

// overlaps compares each field of the keys from first to last with the interval that an element has there.
func (s *nftSet) overlaps(e *nftElem, first, last []byte) bool {
	at := 0
	for _, size := range s.fields {
		to := at + size
		if size < 0 || to > min(len(first), len(e.key), len(e.end)) {
			return false
		}
		if bytes.Compare(last[at:to], e.key[at:to]) < 0 || bytes.Compare(first[at:to], e.end[at:to]) > 0 {
			return false
		}
		at = to + -to&3
	}
	return true
}

// mayHave reports whether a key, of which not all bits are known, may belong to an element.
func (s *nftSet) mayHave(key bits) bool {
	first, last := key.v, bytes.Clone(key.v)
	for i := range last {
		last[i] |= ^key.known[i]
	}
	if s.bounds && s.find(first) != nil {
		return true
	}
	return slices.ContainsFunc(s.list, func(e nftElem) bool {
		switch {
		case e.flags&setElemCatchall != 0:
			return true
		case s.bounds:
			return !e.ends() && bytes.Compare(first, e.key) < 0 && bytes.Compare(e.key, last) <= 0
		case e.end == nil:
			return key.is(e.key) != no
		}
		return s.overlaps(&e, first, last)
	})
}

// lookup looks a register up in a set, a map or a verdict map.
func (m *machine) lookup(d []byte) bool {
	name := attrText(d, unix.NFTA_LOOKUP_SET)
	s, err := m.table.set(name)
	if err != nil {
		m.w.err = err
		return false
	}
	key, of := m.load(d, unix.NFTA_LOOKUP_SREG, s.keyLen)
	maps, dreg := attr(d, unix.NFTA_LOOKUP_DREG) != nil, attr32(d, unix.NFTA_LOOKUP_DREG)
	if m.touched(name) || !key.all() && s.mayHave(key) {
		why := of + " in " + setText(name)
		switch {
		case maps && dreg == unix.NFT_REG_VERDICT:
			m.w.lose()
			m.branches = append(m.branches, branch{sure: yes, do: toUnknown, why: why})
			return false
		case maps:
			m.put(dreg, unknown(s.length), why)
		}
		return m.on(maybe, why)
	}
	var e *nftElem // none has a key of which enough is known: in a set of ports of TCP, a packet of ICMP
	if key.all() {
		e = s.find(key.v)
	}
	t := known(e != nil)
	if e != nil && e.counts {
		t = maybe
	}
	t = t.not(attr32(d, unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0)
	if !m.on(t, "what the set "+setText(name)+" has counted") {
		return false
	}
	switch {
	case !maps || e == nil:
		return true
	case dreg == unix.NFT_REG_VERDICT:
		return m.verdict(attr(e.data, unix.NFTA_DATA_VERDICT))
	}
	m.put(dreg, exactly(attr(e.data, unix.NFTA_DATA_VALUE)...), setText(name))
	return true
}

// setText is a set in nft(8)'s words. The names of those that are written into a rule say nothing.
func setText(name string) string {
	if strings.HasPrefix(name, "__set") || strings.HasPrefix(name, "__map") {
		return "{ ... }"
	}
	return "@" + name
}
