package packetfilter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

func attr(b []byte, path ...uint16) []byte   { return netlink.Attr(b, path...) }
func attr32(b []byte, path ...uint16) uint32 { return netlink.Attr32(b, path...) }
func text(b []byte) string                   { return unix.ByteSliceToString(b) }

// attrText is an attribute that holds a name.
func attrText(b []byte, path ...uint16) string { return text(attr(b, path...)) }

// value is an attribute that holds a value of a register.
func value(b []byte, kind uint16) []byte { return attr(b, kind, unix.NFTA_DATA_VALUE) }

// An nftTable is a table of nf_tables as far as a walk has read it.
type nftTable struct {
	*nft.Table
	conn *nft.Conn
	read map[string][]rule
	sets map[string]*nftSet
}

func newTable(conn *nft.Conn, t *nft.Table) *nftTable {
	return &nftTable{t, conn, map[string][]rule{}, map[string]*nftSet{}}
}

// chain reads the rules of a chain when a packet first comes to it.
func (t *nftTable) chain(name string) ([]rule, error) {
	if rules, ok := t.read[name]; ok {
		return rules, nil
	}
	var rules []rule
	err := t.conn.RawRules(t.Table, name, func(body []byte) {
		rules = append(rules, &nftRule{table: t, body: body})
	})
	if err == nil {
		t.read[name] = rules
	}
	return rules, err
}

func (t *nftTable) has(chain string) bool {
	there, err := t.conn.HasChain(t.Table, chain)
	return there && err == nil
}

type nftRule struct {
	table *nftTable
	body  []byte // NFTA_RULE_…
}

func (r *nftRule) number() uint64 { return netlink.Attr64(r.body, unix.NFTA_RULE_HANDLE) }

// each calls fn for each expression of the rule, until it returns false.
func (r *nftRule) each(fn func(name string, data []byte) bool) {
	more := true
	netlink.EachAttr(attr(r.body, unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, e []byte) {
		if more {
			more = fn(attrText(e, unix.NFTA_EXPR_NAME), attr(e, unix.NFTA_EXPR_DATA))
		}
	})
}

func (r *nftRule) run(w *walk) []branch {
	m := &w.machine
	*m = machine{w: w, table: r.table, sure: yes}
	r.each(m.step)
	for i := range m.branches {
		if b := &m.branches[i]; m.sure != yes {
			b.sure = maybe
			if b.why == "" {
				b.why = m.why
			}
		}
	}
	return m.branches
}

// A machine runs the expressions of one rule. The registers are 16 words of 4 bytes.
type machine struct {
	w        *walk
	table    *nftTable
	sure     tri // that the packet came to the present expression
	why      string
	value    [64]byte
	known    [64]byte
	from     [16]string // what was loaded into a word of the registers, in nft(8)'s words
	branches []branch
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

// get is what size bytes from a register on are, and what they came from.
func (m *machine) get(register uint32, size int) (b bits, from string) {
	at := registers(register)
	if size = min(max(size, 0), len(m.value)); at < 0 || at+size > len(m.value) {
		return unknown(size), "a register that does not exist"
	}
	var words []string
	for i := at / 4; 4*i < at+size; i++ {
		if s := m.from[i]; s != "" && !slices.Contains(words, s) {
			words = append(words, s)
		}
	}
	return bits{m.value[at : at+size], m.known[at : at+size]}, strings.Join(words, " . ")
}

// load returns the register that an attribute of an expression names.
func (m *machine) load(d []byte, register uint16, size int) (b bits, from string) {
	return m.get(attr32(d, register), size)
}

// store fills the register that an attribute of an expression names.
func (m *machine) store(d []byte, register uint16, b bits, from string) {
	m.put(attr32(d, register), b, from)
}

// put fills registers; the rest of the last word becomes zero. What is unknown may be longer than the room for it.
func (m *machine) put(register uint32, b bits, from string) {
	at := registers(register)
	if at < 0 {
		return
	}
	n := copy(m.value[at:], b.v)
	copy(m.known[at:], b.known)
	for i := at + n; i%4 != 0; i++ {
		m.value[i], m.known[i] = 0, 0xff
	}
	for i := at / 4; 4*i < at+n; i++ {
		m.from[i] = from
	}
}

// on goes on if t is not no; why is what a maybe depends on.
func (m *machine) on(t tri, why string) bool {
	if t == maybe && m.sure == yes {
		m.sure, m.why = maybe, why
	}
	return t != no
}

// end takes a verdict.
func (m *machine) end(b branch) bool {
	if b.do == toUnknown {
		m.w.alter()
	}
	b.sure = yes
	m.branches = append(m.branches, b)
	return false
}

// endUnknown takes the verdict of what is not followed.
func (m *machine) endUnknown(why string) bool { return m.end(branch{do: toUnknown, why: why}) }

func (m *machine) verdict(v []byte) bool {
	switch code := int32(attr32(v, unix.NFTA_VERDICT_CODE)); code {
	case unix.NFT_CONTINUE:
		return true
	case unix.NFT_BREAK:
		return false
	default:
		do, why := decided(code)
		return m.end(branch{do: do, chain: attrText(v, unix.NFTA_VERDICT_CHAIN), why: why})
	}
}

func decided(code int32) (do decision, why string) {
	switch code {
	case 0: // NF_DROP
		return toDrop, ""
	case 1: // NF_ACCEPT
		return toAccept, ""
	case unix.NFT_JUMP:
		return toJump, ""
	case unix.NFT_GOTO:
		return toGoto, ""
	case unix.NFT_RETURN:
		return toReturn, ""
	}
	return toUnknown, fmt.Sprintf("verdict %d", code)
}

const dynsetExpressions = 10 // NFTA_DYNSET_EXPRESSIONS, of Linux 5.11

// step runs one expression, and reports whether the next one is to be run.
func (m *machine) step(name string, d []byte) bool {
	switch name {
	case "nat", "redir", "masq":
		if m.w.through || m.w.translates && (name == "redir" || attr32(d, unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT) {
			return m.end(branch{do: toTranslate, to: m.translation(name, d)})
		}
	case "notrack":
		m.w.notrack(m.sure)
	case "counter", "log", "last", "dup":
	case "immediate":
		if v := attr(d, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT); v != nil {
			return m.verdict(v)
		}
		m.store(d, unix.NFTA_IMMEDIATE_DREG, exactly(value(d, unix.NFTA_IMMEDIATE_DATA)...), "a value")
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
		from := value(d, unix.NFTA_RANGE_FROM_DATA)
		b, of := m.load(d, unix.NFTA_RANGE_SREG, len(from))
		t := b.within(from, value(d, unix.NFTA_RANGE_TO_DATA))
		return m.on(t.not(attr32(d, unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ), of)
	case "lookup":
		return m.lookup(d)
	case "reject":
		return m.end(branch{do: toDrop})
	case "queue":
		return m.endUnknown("a program in user space")
	case "match":
		match, rev := attrText(d, unix.NFTA_MATCH_NAME), attr32(d, unix.NFTA_MATCH_REV)
		info := attr(d, unix.NFTA_MATCH_INFO)
		return m.on(m.w.match(match, rev, info), "-m "+match)
	case "target":
		return m.target(d)
	case "objref":
		return m.object(d)
	case "dynset":
		return m.dynset(d)
	case "limit", "quota", "connlimit", "numgen", "hash", "rt", "socket", "osf", "xfrm", "tunnel", "exthdr", "inner",
		"flow_offload":
		return m.anything(name)
	default: // synproxy takes the packet, tproxy gives it a socket
		return m.endUnknown("a " + name)
	}
	return true
}

// anything runs an expression that may load, and match, whatever it likes.
func (m *machine) anything(name string) bool {
	m.value, m.known = [64]byte{}, [64]byte{}
	for i := range m.from {
		m.from[i] = name
	}
	return m.on(maybe, "a "+name)
}

// target runs a target of xtables.
func (m *machine) target(d []byte) bool {
	target, rev := attrText(d, unix.NFTA_TARGET_NAME), attr32(d, unix.NFTA_TARGET_REV)
	b := m.w.target(target, rev, attr(d, unix.NFTA_TARGET_INFO), m.sure)
	return b.do == 0 || m.end(b)
}

// object is a named one. Counters and what conntrack is told change nothing; limits and quotas match or do not.
func (m *machine) object(d []byte) bool {
	switch attr32(d, unix.NFTA_OBJREF_IMM_TYPE) {
	case unix.NFT_OBJECT_COUNTER, unix.NFT_OBJECT_CT_HELPER, unix.NFT_OBJECT_CT_TIMEOUT, unix.NFT_OBJECT_CT_EXPECT,
		unix.NFT_OBJECT_SECMARK:
		return true
	case unix.NFT_OBJECT_LIMIT, unix.NFT_OBJECT_QUOTA, unix.NFT_OBJECT_CONNLIMIT:
		return m.on(maybe, "the object "+attrText(d, unix.NFTA_OBJREF_IMM_NAME))
	}
	return m.endUnknown("an object") // a synproxy, or whatever a map names
}

func (m *machine) cmp(d []byte) bool {
	v, op := value(d, unix.NFTA_CMP_DATA), attr32(d, unix.NFTA_CMP_OP)
	b, of := m.load(d, unix.NFTA_CMP_SREG, len(v))
	if op == unix.NFT_CMP_EQ || op == unix.NFT_CMP_NEQ {
		return m.on(b.is(v).not(op == unix.NFT_CMP_NEQ), of)
	}
	if !b.all() {
		return m.on(maybe, of)
	}
	switch c := bytes.Compare(b.v, v); op {
	case unix.NFT_CMP_LT:
		return c < 0
	case unix.NFT_CMP_LTE:
		return c <= 0
	case unix.NFT_CMP_GT:
		return c > 0
	case unix.NFT_CMP_GTE:
		return c >= 0
	}
	return m.on(maybe, "a comparison that is not understood")
}

const bitwiseOp = 6 // NFTA_BITWISE_OP

// bitwise masks; shifts, and what else there is since Linux 6.13, are not followed.
func (m *machine) bitwise(d []byte) {
	b, from := m.load(d, unix.NFTA_BITWISE_SREG, int(attr32(d, unix.NFTA_BITWISE_LEN)))
	if attr32(d, bitwiseOp) == unix.NFT_BITWISE_BOOL {
		b = b.masked(value(d, unix.NFTA_BITWISE_MASK), value(d, unix.NFTA_BITWISE_XOR))
	} else {
		b = unknown(len(b.v))
	}
	m.store(d, unix.NFTA_BITWISE_DREG, b, from)
}

// byteorder turns the bytes of numbers round.
func (m *machine) byteorder(d []byte) {
	size := int(attr32(d, unix.NFTA_BYTEORDER_SIZE))
	b, from := m.load(d, unix.NFTA_BYTEORDER_SREG, int(attr32(d, unix.NFTA_BYTEORDER_LEN)))
	b = b.under(nil) // a copy
	switch {
	case size != 2 && size != 4 && size != 8:
		b = unknown(len(b.v))
	case binary.NativeEndian.Uint16([]byte{1, 0}) == 1:
		for at := 0; at+size <= len(b.v); at += size {
			slices.Reverse(b.v[at : at+size])
			slices.Reverse(b.known[at : at+size])
		}
	}
	m.store(d, unix.NFTA_BYTEORDER_DREG, b, from)
}
