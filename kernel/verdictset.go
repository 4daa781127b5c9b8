package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// An nftSet is what has to be known of a set to ask it.
type nftSet struct {
	name           string
	flags          uint32
	keyLen, length int   // of the data, 0 for verdicts
	fields         []int // lengths of the parts of a concatenation with intervals
	list           []nftElem
	listed, large  bool
}

// An nftElem is an element, or an interval of them.
type nftElem struct {
	key, end []byte // end is the last key of an interval, and nil of a single one
	data     []byte // NFTA_SET_ELEM_DATA
	flags    uint32
	exprs    bool // it has a state of its own: a limit, or a counter
}

// What x/sys lacks names for.
const (
	setElemExpressions = 11
	setElemCatchall    = 2 // NFT_SET_ELEM_CATCHALL, of Linux 5.13
)

// mostElements is as much of a set as is read where it cannot be asked for one element; twice as many where none is an
// interval.
const mostElements = 1000

func (f *nftFilter) set(name string) (*nftSet, error) {
	if s := f.sets[name]; s != nil {
		return s, nil
	}
	s := &nftSet{name: name}
	q := &question{op: unix.NFT_MSG_GETSET, family: f.family,
		fill: func(r *requests) {
			r.str(unix.NFTA_SET_TABLE, f.table)
			r.str(unix.NFTA_SET_NAME, name)
		},
		answer: func(body []byte) {
			b := body[4:]
			s.flags, s.keyLen = attr32(b, unix.NFTA_SET_FLAGS), int(attr32(b, unix.NFTA_SET_KEY_LEN))
			if attr32(b, unix.NFTA_SET_DATA_TYPE) != unix.NFT_DATA_VERDICT&0xffffffff {
				s.length = int(attr32(b, unix.NFTA_SET_DATA_LEN))
			}
			attrs(attr(b, unix.NFTA_SET_DESC, nftaSetDescConcat), func(_ uint16, v []byte) {
				s.fields = append(s.fields, int(attr32(v, nftaSetFieldLen)))
			})
		}}
	if err := f.nft.ask([]*question{q}); err != nil {
		return nil, err
	}
	if !q.found {
		return nil, fmt.Errorf("set %s %s: %w", f.table, name, unix.ENOENT) // somebody changed the rules meanwhile
	}
	f.sets[name] = s
	return s, nil
}

func nftElems(body []byte) (all []nftElem) {
	if len(body) < 4 {
		return nil
	}
	attrs(attr(body[4:], unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, v []byte) {
		e := nftElem{
			key:   bytes.Clone(attr(v, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)),
			end:   bytes.Clone(attr(v, nftaSetElemKeyEnd, unix.NFTA_DATA_VALUE)),
			data:  bytes.Clone(attr(v, unix.NFTA_SET_ELEM_DATA)),
			flags: attr32(v, unix.NFTA_SET_ELEM_FLAGS),
		}
		limited := func(expr []byte) {
			e.exprs = e.exprs || expr != nil && text(attr(expr, unix.NFTA_EXPR_NAME)) != "counter"
		}
		limited(attr(v, unix.NFTA_SET_ELEM_EXPR))
		attrs(attr(v, setElemExpressions), func(_ uint16, expr []byte) { limited(expr) })
		all = append(all, e)
	})
	return all
}

// get asks for the element that a key belongs to, in an interval, too.
func (f *nftFilter) get(s *nftSet, key []byte) (found []nftElem, err error) {
	ask := func(fill func(r *requests)) error {
		return f.nft.ask([]*question{{op: unix.NFT_MSG_GETSETELEM, family: f.family,
			answer: func(body []byte) { found = append(found, nftElems(body)...) },
			fill: func(r *requests) {
				r.str(unix.NFTA_SET_ELEM_LIST_TABLE, f.table)
				r.str(unix.NFTA_SET_ELEM_LIST_SET, s.name)
				r.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() { r.nest(unix.NFTA_LIST_ELEM, func() { fill(r) }) })
			}}})
	}
	if err = ask(func(r *requests) { r.value(unix.NFTA_SET_ELEM_KEY, key) }); err != nil || len(found) > 0 {
		return found, err
	}
	// "*" is another element, and older kernels know of none.
	if err = ask(func(r *requests) { r.u32(unix.NFTA_SET_ELEM_FLAGS, setElemCatchall) }); errors.Is(err, unix.EINVAL) {
		err = nil
	}
	return found, err
}

// elements reads a set, its intervals as such.
func (f *nftFilter) elements(s *nftSet) error {
	if s.listed {
		return nil
	}
	n := f.nft
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	r := n.c.requests()
	r.begin(nftMsg(unix.NFT_MSG_GETSETELEM), unix.NLM_F_DUMP, nfgenmsg(f.family)...)
	r.str(unix.NFTA_SET_ELEM_LIST_TABLE, f.table)
	r.str(unix.NFTA_SET_ELEM_LIST_SET, s.name)
	var all []nftElem
	err := n.c.dump(r, func(body []byte) {
		if s.large = s.large || len(all) > 2*mostElements; !s.large {
			all = append(all, nftElems(body)...)
		}
	})
	if err != nil {
		return fmt.Errorf("list set %s %s: %w", f.table, s.name, err)
	}
	s.list, s.listed = intervals(s, all), true
	return nil
}

// intervals puts the ends of intervals, which are elements of their own where no key has several fields, to their
// beginnings.
func intervals(s *nftSet, all []nftElem) (list []nftElem) {
	if s.flags&unix.NFT_SET_INTERVAL == 0 || len(s.fields) > 1 {
		return all
	}
	const end = unix.NFT_SET_ELEM_INTERVAL_END
	slices.SortStableFunc(all, func(a, b nftElem) int {
		if c := bytes.Compare(a.key, b.key); c != 0 {
			return c
		}
		return int(b.flags&end) - int(a.flags&end)
	})
	for i, e := range all {
		switch {
		case e.flags&end != 0:
			continue
		case e.flags&setElemCatchall != 0:
		case i+1 < len(all):
			e.end = before(all[i+1].key)
		default:
			e.end = bytes.Repeat([]byte{0xff}, len(e.key))
		}
		list = append(list, e)
	}
	return list
}

// before is the key that comes before this one.
func before(key []byte) []byte {
	b := bytes.Clone(key)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]--
		if b[i] != 0xff {
			break
		}
	}
	return b
}

// has compares a key with an element.
func (s *nftSet) has(e nftElem, key bits) tri {
	switch {
	case e.end == nil:
		return key.is(e.key)
	case len(s.fields) < 2:
		return key.within(e.key, e.end)
	}
	t, at := yes, 0
	for _, size := range s.fields {
		if to := at + size; size > 0 && to <= min(len(key.v), len(e.key), len(e.end)) {
			t = min(t, bits{key.v[at:to], key.known[at:to]}.within(e.key[at:to], e.end[at:to]))
		}
		at += align4(size)
	}
	return t
}

// lookup looks a register up in a set, a map or a verdict map.
func (m *machine) lookup(d []byte) bool {
	name := text(attr(d, unix.NFTA_LOOKUP_SET))
	s, err := m.filter.set(name)
	if err != nil {
		m.w.err = err
		return false
	}
	key, _ := m.get(attr32(d, unix.NFTA_LOOKUP_SREG), s.keyLen)
	name = setText(name)
	why := ""
	if !key.all() {
		why = m.sources(attr32(d, unix.NFTA_LOOKUP_SREG), s.keyLen)
	}
	var found, possible []nftElem
	switch {
	case key.all():
		found, err = m.filter.get(s, key.v)
	default:
		err = m.filter.elements(s)
		star := slices.IndexFunc(s.list, func(e nftElem) bool { return e.flags&setElemCatchall != 0 })
		for i, e := range s.list {
			if i == star {
				continue
			}
			switch s.has(e, key) {
			case yes:
				found = append(found, e)
			case maybe:
				possible = append(possible, e)
			}
		}
		if star >= 0 && len(found) == 0 {
			if len(possible) == 0 {
				found = append(found, s.list[star])
			} else {
				possible = append(possible, s.list[star])
			}
		}
	}
	if err != nil {
		m.w.err = err
		return false
	}
	if s.large && !key.all() {
		return m.doubtful(d, s, why+" in "+name+", which is too large to look through")
	}
	t := no
	if len(found) > 0 {
		t = yes
		if found[0].exprs { // a limit, say
			t, why = maybe, "what the set "+name+" has counted"
		}
	} else if len(possible) > 0 {
		t = maybe
	}
	if attr(d, unix.NFTA_LOOKUP_DREG) == nil {
		return m.on(t.not(attr32(d, unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0), origin{name: why})
	}
	if len(found) == 0 {
		found = possible
	}
	return m.mapped(d, s, found, t, why)
}

// setText is a set in nft(8)'s words. The names of those that are written into a rule say nothing.
func setText(name string) string {
	if strings.HasPrefix(name, "__set") || strings.HasPrefix(name, "__map") {
		return "{ ... }"
	}
	return "@" + name
}

// doubtful goes on after a lookup of which nothing is known.
func (m *machine) doubtful(d []byte, s *nftSet, why string) bool {
	if dreg := attr32(d, unix.NFTA_LOOKUP_DREG); attr(d, unix.NFTA_LOOKUP_DREG) != nil {
		if dreg == unix.NFT_REG_VERDICT {
			return m.end(toOthers, "", why)
		}
		m.put(dreg, unknown(s.length), origin{name: why})
	}
	return m.on(maybe, origin{name: why})
}

// mapped takes what a map leads to: several elements are possible if t is maybe.
func (m *machine) mapped(d []byte, s *nftSet, elems []nftElem, t tri, why string) bool {
	if !m.on(t, origin{name: why}) {
		return false
	}
	dreg := attr32(d, unix.NFTA_LOOKUP_DREG)
	if dreg == unix.NFT_REG_VERDICT {
		for _, e := range elems {
			if m.verdict(attr(e.data, unix.NFTA_DATA_VERDICT)) {
				m.sure, m.why = maybe, why // "continue": not the other elements
			}
		}
		return false
	}
	var b bits
	for i, e := range elems {
		v := exactly(bytes.Clone(attr(e.data, unix.NFTA_DATA_VALUE))...)
		if i == 0 {
			b = v
		}
		b.join(v)
	}
	m.put(dreg, b, origin{name: setText(s.name)})
	return true
}

// sources are what was loaded into a range of registers.
func (m *machine) sources(register uint32, size int) string {
	var words []string
	for at := registers(register); at >= 0 && at < len(m.value) && size > 0; at, size = at+4, size-4 {
		if s := m.from[at/4].text(m.w); s != "" && !slices.Contains(words, s) {
			words = append(words, s)
		}
	}
	return strings.Join(words, " . ")
}
