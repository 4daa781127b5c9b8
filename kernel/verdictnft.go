package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// An nftFilter is one table as far as a walk has read it.
type nftFilter struct {
	nft    *NFT
	family byte
	table  string
	read   map[string][]rule
	sets   map[string]*nftSet
}

// chain reads the rules of a chain when a packet first comes to it.
func (f *nftFilter) chain(name string) ([]rule, error) {
	if rules, ok := f.read[name]; ok {
		return rules, nil
	}
	var rules []rule
	err := f.nft.dumpRules(&NFTTable{Family: f.family, Name: f.table}, name, func(body []byte) {
		rules = append(rules, &nftRule{filter: f, body: body})
	})
	if err != nil {
		return nil, err
	}
	f.read[name] = rules
	return rules, nil
}

type nftRule struct {
	filter *nftFilter
	body   []byte
}

func (r *nftRule) number() uint64 {
	if v := attr(r.body, unix.NFTA_RULE_HANDLE); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// each calls fn for each expression of the rule, until it returns false.
func (r *nftRule) each(fn func(name string, data []byte) bool) {
	more := true
	attrs(attr(r.body, unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, e []byte) {
		if more {
			more = fn(text(attr(e, unix.NFTA_EXPR_NAME)), attr(e, unix.NFTA_EXPR_DATA))
		}
	})
}

func (r *nftRule) run(w *walk) []branch {
	m := &w.machine
	*m = machine{w: w, filter: r.filter, sure: yes}
	r.each(m.step)
	if m.sure != yes {
		for i := range m.branches {
			m.branches[i].sure = maybe
			if m.branches[i].why == "" {
				m.branches[i].why = m.why
			}
		}
	}
	return m.branches
}

// A machine runs the expressions of one rule. The registers are 16 words of 4 bytes.
type machine struct {
	w        *walk
	filter   *nftFilter
	sure     tri // that the packet came to the present expression
	why      string
	value    [64]byte
	known    [64]byte
	from     [16]origin // what was loaded at a word of the registers
	branches []branch
}

// An origin is the expression that loaded a register, or else a text.
type origin struct {
	name string
	d    []byte
}

// text is what was loaded, in nft(8)'s words.
func (o origin) text(w *walk) string {
	switch d := o.d; {
	case d == nil:
		return o.name
	case o.name == "meta":
		return metaText(attr32(d, unix.NFTA_META_KEY))
	case o.name == "payload":
		return payloadText(w.family(), w.p.Proto, attr32(d, unix.NFTA_PAYLOAD_BASE), int(attr32(d, unix.NFTA_PAYLOAD_OFFSET)), int(attr32(d, unix.NFTA_PAYLOAD_LEN)))
	case o.name == "ct":
		return ctText(attr32(d, unix.NFTA_CT_KEY))
	case o.name == "fib":
		return fibText(d)
	}
	return o.name
}

// registers returns where a register begins, or -1 for the verdict and for what does not exist.
func registers(number uint32) int {
	switch {
	case number >= unix.NFT_REG_1 && number <= unix.NFT_REG_4:
		return int(number-unix.NFT_REG_1) * 16
	case number >= unix.NFT_REG32_00 && number <= unix.NFT_REG32_15:
		return int(number-unix.NFT_REG32_00) * 4
	}
	return -1
}

// get is what size bytes at a register are, and what they came from.
func (m *machine) get(register uint32, size int) (bits, origin) {
	at := registers(register)
	if at < 0 || size < 0 || at+size > len(m.value) {
		return unknown(min(max(size, 0), 64)), origin{name: "a register that does not exist"}
	}
	return bits{m.value[at : at+size], m.known[at : at+size]}, m.from[at/4]
}

// put fills a register; the rest of its last word becomes zero.
func (m *machine) put(register uint32, b bits, from origin) {
	at := registers(register)
	if at < 0 || at+len(b.v) > len(m.value) || len(b.v) == 0 {
		return
	}
	copy(m.value[at:], b.v)
	copy(m.known[at:], b.known)
	for i := at + len(b.v); i < at+align4(len(b.v)); i++ {
		m.value[i], m.known[i] = 0, 0xff
	}
	m.from[at/4] = from
}

// on goes on if t is not no; o is what a maybe depends on.
func (m *machine) on(t tri, o origin) bool {
	if t == maybe && m.sure == yes {
		m.sure, m.why = maybe, o.text(m.w)
	}
	return t != no
}

// end takes a verdict.
func (m *machine) end(do decision, chain, why string) bool {
	m.branches = append(m.branches, branch{sure: yes, do: do, chain: chain, why: why})
	return false
}

func (m *machine) verdict(v []byte) bool {
	switch code := int32(attr32(v, unix.NFTA_VERDICT_CODE)); code {
	case unix.NFT_CONTINUE:
		return true
	case unix.NFT_BREAK:
		return false
	default:
		do, ok := decided(code)
		if !ok {
			return m.end(toOthers, "", fmt.Sprintf("verdict %d", code))
		}
		return m.end(do, text(attr(v, unix.NFTA_VERDICT_CHAIN)), "")
	}
}

func decided(code int32) (decision, bool) {
	switch code {
	case 0: // NF_DROP
		return toDrop, true
	case nfAccept:
		return toAccept, true
	case unix.NFT_JUMP:
		return toJump, true
	case unix.NFT_GOTO:
		return toGoto, true
	case unix.NFT_RETURN:
		return toReturn, true
	}
	return 0, false
}

// step runs one expression, and reports whether the next one is to be run.
func (m *machine) step(name string, d []byte) bool {
	switch name {
	case "counter", "log", "last", "dup", "notrack", "nat", "masq", "redir":
		return true
	case "immediate":
		v := attr(d, unix.NFTA_IMMEDIATE_DATA)
		if verdict := attr(v, unix.NFTA_DATA_VERDICT); verdict != nil {
			return m.verdict(verdict)
		}
		m.put(attr32(d, unix.NFTA_IMMEDIATE_DREG), exactly(attr(v, unix.NFTA_DATA_VALUE)...), origin{name: "a value"})
	case "meta":
		return m.meta(d)
	case "payload":
		return m.payload(d)
	case "ct":
		return m.ct(d)
	case "fib":
		m.fib(d)
	case "bitwise":
		m.bitwise(d)
	case "byteorder":
		m.byteorder(d)
	case "cmp":
		return m.cmp(d)
	case "range":
		from, to := attr(d, unix.NFTA_RANGE_FROM_DATA, unix.NFTA_DATA_VALUE), attr(d, unix.NFTA_RANGE_TO_DATA, unix.NFTA_DATA_VALUE)
		b, why := m.get(attr32(d, unix.NFTA_RANGE_SREG), len(from))
		if len(from) != len(to) {
			return m.on(maybe, origin{name: "a range that is not understood"})
		}
		return m.on(b.within(from, to).not(attr32(d, unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ), why)
	case "lookup":
		return m.lookup(d)
	case "reject":
		return m.end(toDrop, "", "")
	case "queue":
		return m.end(toOthers, "", "a program in user space")
	case "match":
		t, why := xtMatch(m.w, text(attr(d, unix.NFTA_MATCH_NAME)), attr32(d, unix.NFTA_MATCH_REV), attr(d, unix.NFTA_MATCH_INFO))
		return m.on(t, origin{name: why})
	case "target":
		do, why := m.w.target(text(attr(d, unix.NFTA_TARGET_NAME)), attr32(d, unix.NFTA_TARGET_REV), attr(d, unix.NFTA_TARGET_INFO), m.sure)
		return do == 0 || m.end(do, "", why)
	case "objref":
		// Counters and what conntrack is told change nothing; limits and quotas match or do not.
		switch attr32(d, unix.NFTA_OBJREF_IMM_TYPE) {
		case unix.NFT_OBJECT_COUNTER, unix.NFT_OBJECT_CT_HELPER, unix.NFT_OBJECT_CT_TIMEOUT, unix.NFT_OBJECT_CT_EXPECT, unix.NFT_OBJECT_SECMARK:
			return true
		}
		return m.on(maybe, origin{name: "the object " + text(attr(d, unix.NFTA_OBJREF_IMM_NAME))})
	case "dynset":
		return m.on(known(attr(d, unix.NFTA_DYNSET_EXPR) == nil && attr(d, dynsetExpressions) == nil && attr32(d, unix.NFTA_DYNSET_FLAGS) == 0).or(maybe),
			origin{name: "what the set " + text(attr(d, unix.NFTA_DYNSET_SET_NAME)) + " has counted"})
	case "limit", "quota", "connlimit":
		return m.on(maybe, origin{name: "a " + name})
	case "flow_offload":
		return m.on(maybe, origin{name: "a flowtable"})
	default:
		// Whatever it loads, or matches.
		m.value, m.known = [64]byte{}, [64]byte{}
		for i := range m.from {
			m.from[i] = origin{name: name}
		}
		return m.on(maybe, origin{name: name})
	}
	return true
}

// dynsetExpressions is NFTA_DYNSET_EXPRESSIONS, of Linux 5.11.
const dynsetExpressions = 10

func (t tri) or(u tri) tri { return max(t, u) }

func (m *machine) cmp(d []byte) bool {
	v := attr(d, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
	b, why := m.get(attr32(d, unix.NFTA_CMP_SREG), len(v))
	bottom, top := make([]byte, len(v)), bytes.Repeat([]byte{0xff}, len(v))
	var t tri
	switch attr32(d, unix.NFTA_CMP_OP) {
	case unix.NFT_CMP_EQ:
		t = b.is(v)
	case unix.NFT_CMP_NEQ:
		t = b.is(v).not(true)
	case unix.NFT_CMP_LTE:
		t = b.within(bottom, v)
	case unix.NFT_CMP_GT:
		t = b.within(bottom, v).not(true)
	case unix.NFT_CMP_GTE:
		t = b.within(v, top)
	case unix.NFT_CMP_LT:
		t = b.within(v, top).not(true)
	default:
		t, why = maybe, origin{name: "a comparison that is not understood"}
	}
	return m.on(t, why)
}

// Operations of bitwise that x/sys lacks names for.
const (
	bitwiseOp     = 6 // NFTA_BITWISE_OP
	bitwiseData   = 7
	bitwiseLshift = 1 // NFT_BITWISE_LSHIFT
	bitwiseRshift = 2
)

func (m *machine) bitwise(d []byte) {
	size, dreg := int(attr32(d, unix.NFTA_BITWISE_LEN)), attr32(d, unix.NFTA_BITWISE_DREG)
	b, from := m.get(attr32(d, unix.NFTA_BITWISE_SREG), size)
	b = b.clone()
	mask, xor := attr(d, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE), attr(d, unix.NFTA_BITWISE_XOR, unix.NFTA_DATA_VALUE)
	switch op := attr32(d, bitwiseOp); {
	case op == unix.NFT_BITWISE_BOOL && len(mask) == len(b.v) && len(xor) == len(b.v):
		b = b.masked(mask)
		for i := range xor {
			b.v[i] = (b.v[i] ^ xor[i]) & b.known[i]
		}
	case (op == bitwiseLshift || op == bitwiseRshift) && len(b.v)%4 == 0 && b.all():
		by, words := native32(attr(d, bitwiseData, unix.NFTA_DATA_VALUE)), len(b.v)/4
		carry := uint32(0)
		for i := range words { // from the first word to the last for a shift to the right, else back
			if op == bitwiseLshift {
				i = words - 1 - i
			}
			word := binary.NativeEndian.Uint32(b.v[4*i:])
			if op == bitwiseLshift {
				binary.NativeEndian.PutUint32(b.v[4*i:], word<<by|carry)
				carry = word >> (32 - by)
			} else {
				binary.NativeEndian.PutUint32(b.v[4*i:], word>>by|carry)
				carry = word << (32 - by)
			}
		}
	default:
		b = unknown(len(b.v))
	}
	m.put(dreg, b, from)
}

func native32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// byteorder turns the bytes of numbers round.
func (m *machine) byteorder(d []byte) {
	size := int(attr32(d, unix.NFTA_BYTEORDER_SIZE))
	b, from := m.get(attr32(d, unix.NFTA_BYTEORDER_SREG), int(attr32(d, unix.NFTA_BYTEORDER_LEN)))
	b = b.clone()
	if size != 2 && size != 4 && size != 8 || size > len(b.v) {
		b = unknown(len(b.v))
	} else if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		for at := 0; at+size <= len(b.v); at += size {
			for i, j := at, at+size-1; i < j; i, j = i+1, j-1 {
				b.v[i], b.v[j] = b.v[j], b.v[i]
				b.known[i], b.known[j] = b.known[j], b.known[i]
			}
		}
	}
	m.put(attr32(d, unix.NFTA_BYTEORDER_DREG), b, from)
}
