package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// A legacyTable is a table of ip_tables as getsockopt(2) tells it: entries, one after another, that refer to each other
// by their offsets. No program is run for it.
type legacyTable struct {
	v6     bool
	chains map[string][]rule
	starts map[int]string // which chain begins at an offset
	drops  bool           // the policy of FORWARD
}

func (t *legacyTable) chain(name string) ([]rule, error) {
	rules, ok := t.chains[name]
	if !ok {
		return nil, fmt.Errorf("ip_tables chain %s: %w", name, unix.ENOENT)
	}
	return rules, nil
}

// A legacyRule is one entry.
type legacyRule struct {
	table          *legacyTable
	at             int // offset of the entry
	b              []byte
	target         int // offset in b
	where          string
	ip             []byte // struct ipt_ip or ip6t_ip6
	flags, inverse byte
}

// The names that ip_tables gives its hooks, in their order.
func builtinChains() []string {
	return []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
}

// The conditions that an entry may have the contrary of: IPT_INV_VIA_IN and so on.
const (
	invIn    = 0x01
	invOut   = 0x02
	invSrc   = 0x08
	invDst   = 0x10
	invFrag  = 0x20
	invProto = 0x40
)

func parseLegacy(info iptInfo, b []byte, v6 bool) (*legacyTable, error) {
	t := &legacyTable{v6: v6, chains: map[string][]rule{}, starts: map[int]string{}}
	begins, policies := map[int]string{}, map[int]string{}
	for i, name := range builtinChains() {
		if info.validHooks>>i&1 != 0 {
			begins[int(info.hooks[i])], policies[int(info.underflow[i])] = name, name
		}
	}
	head, addrs := entryOffsets(v6), 8
	if v6 {
		addrs = 32
	}
	chain := ""
	for at := 0; at+head+4 <= len(b); {
		target, next := int(binary.NativeEndian.Uint16(b[at+head:])), int(binary.NativeEndian.Uint16(b[at+head+2:]))
		if next < target+32 || at+next > len(b) || target < head+4 {
			return nil, fmt.Errorf("ip_tables entry at %d is malformed", at)
		}
		r := &legacyRule{table: t, at: at, b: b[at : at+next], target: target, ip: b[at : at+head]}
		proto := 2*addrs + 64
		r.flags, r.inverse = r.ip[proto+2], r.ip[proto+3]
		if v6 {
			r.flags, r.inverse = r.ip[proto+3], r.ip[proto+4]
		}
		if name := begins[at]; name != "" {
			chain = name
			t.starts[at], t.chains[name] = name, nil
		}
		name := text(r.b[target+2 : target+31])
		switch {
		case name == "ERROR":
			if len(r.b) >= target+62 { // a chain begins behind it
				chain = text(r.b[target+32 : target+62])
				t.starts[at+next], t.chains[chain] = chain, nil
			}
		case policies[at] != "" && name == "":
			t.drops = t.drops || policies[at] == "FORWARD" && r.code() == -1
		default:
			r.where = chain
			t.chains[chain] = append(t.chains[chain], r)
		}
		at += next
	}
	return t, nil
}

// code is the verdict of a standard target: an offset, or what the kernel returns less one, negative.
func (r *legacyRule) code() int {
	if len(r.b) < r.target+36 {
		return -1
	}
	return int(int32(binary.NativeEndian.Uint32(r.b[r.target+32:])))
}

func (r *legacyRule) number() uint64 { return 0 }

// part is a field of the entry's first part, by its offset in IPv4 and in IPv6, where addresses are longer.
func (r *legacyRule) part(n, size int) []byte { return r.ip[n : n+size] }

// fields are the addresses, links and protocol that an entry asks for, with their masks.
func (r *legacyRule) fields() (src, dst, srcMask, dstMask, in, out, inMask, outMask []byte, proto byte, asked bool) {
	n := 4
	if r.table.v6 {
		n = 16
	}
	at := 4 * n
	proto = r.ip[at+64]
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		proto = r.ip[at+65]
	}
	asked = proto != 0
	if r.table.v6 {
		asked = r.flags&1 != 0
	}
	return r.part(0, n), r.part(n, n), r.part(2*n, n), r.part(3*n, n),
		r.part(at, 16), r.part(at+16, 16), r.part(at+32, 16), r.part(at+48, 16), proto, asked
}

func (r *legacyRule) run(w *walk) []branch {
	t, why := yes, ""
	ask := func(u tri, inv byte, what string) {
		if u = u.not(r.inverse&inv != 0); u == maybe && why == "" {
			why = what
		}
		t = min(t, u)
	}
	src, dst, srcMask, dstMask, in, out, inMask, outMask, proto, asked := r.fields()
	ask(w.addr(w.p.Src).masked(srcMask).is(src), invSrc, "-s")
	ask(w.addr(w.p.Dst).masked(dstMask).is(dst), invDst, "-d")
	ask(ifname(w.p.In).masked(inMask).is(and(in, inMask)), invIn, "-i")
	ask(ifname(w.p.Out).masked(outMask).is(and(out, outMask)), invOut, "-o")
	if asked {
		ask(w.is(proto), invProto, "-p")
	}
	if !r.table.v6 && r.flags&1 != 0 { // IPT_F_FRAG
		ask(no, invFrag, "-f")
	}
	if t == no {
		return nil
	}
	r.matches(func(name string, rev byte, info []byte) {
		u, what := xtMatch(w, name, uint32(rev), info)
		ask(u, 0, what)
	})
	if t == no {
		return nil
	}
	b := r.do(w, t)
	if b.do == 0 {
		return nil
	}
	if b.sure = t; t == maybe && b.why == "" {
		b.why = why
	}
	return []branch{b}
}

func and(a, b []byte) []byte {
	c := make([]byte, len(a))
	for i := range a {
		c[i] = a[i] & b[i]
	}
	return c
}

// matches calls fn for what the entry asks with -m.
func (r *legacyRule) matches(fn func(name string, rev byte, info []byte)) {
	at := 112
	if r.table.v6 {
		at = 168
	}
	for at+32 <= r.target {
		size := int(binary.NativeEndian.Uint16(r.b[at:]))
		if size < 32 || at+size > r.target {
			return
		}
		fn(text(r.b[at+2:at+31]), r.b[at+31], r.b[at+32:at+size])
		at += size
	}
}

// do is what the target does.
func (r *legacyRule) do(w *walk, sure tri) branch {
	name := text(r.b[r.target+2 : r.target+31])
	if name != "" {
		do, why := w.target(name, uint32(r.b[r.target+31]), r.b[r.target+32:], sure)
		return branch{do: do, why: why}
	}
	switch code := r.code(); {
	case code == -1: // NF_DROP
		return branch{do: toDrop}
	case code == -2: // NF_ACCEPT
		return branch{do: toAccept}
	case code == -5: // NF_REPEAT stands for RETURN
		return branch{do: toReturn}
	case code < 0:
		return branch{do: toOthers, why: "a program in user space"}
	case code == r.at+len(r.b): // on to the next
		return branch{}
	case r.isGoto():
		return branch{do: toGoto, chain: r.table.starts[code]}
	default:
		return branch{do: toJump, chain: r.table.starts[code]}
	}
}

func (r *legacyRule) isGoto() bool {
	if r.table.v6 {
		return r.flags&4 != 0
	}
	return r.flags&2 != 0
}

func (r *legacyRule) text() string {
	src, dst, srcMask, dstMask, in, out, inMask, outMask, proto, asked := r.fields()
	w := &wording{iptables: true, words: []string{"-A", r.where}}
	prefix := func(name string, a, mask []byte, inv byte) {
		if addr, ok := netip.AddrFromSlice(a); ok && prefixLen(mask) != 0 {
			value := addr.String() + "/" + netipMask(mask)
			if n := prefixLen(mask); n > 0 {
				value = netip.PrefixFrom(addr, n).String()
			}
			w.condition(name, r.inverse&inv != 0, value)
		}
	}
	prefix("ip saddr", src, srcMask, invSrc)
	prefix("ip daddr", dst, dstMask, invDst)
	link := func(name string, link, mask []byte, inv byte) {
		if mask[0] != 0 {
			s := text(link)
			if n := len(s); n < 16 && mask[n] == 0 && !strings.HasSuffix(s, "+") { // a zero that is compared ends a name
				s += "+"
			}
			w.condition(name, r.inverse&inv != 0, s)
		}
	}
	link("iifname", in, inMask, invIn)
	link("oifname", out, outMask, invOut)
	if asked {
		w.condition("meta l4proto", r.inverse&invProto != 0, ProtoName(proto))
	}
	r.matches(func(name string, rev byte, info []byte) { w.add(xtMatchText(name, uint32(rev), info)) })
	name := text(r.b[r.target+2 : r.target+31])
	b := r.do(&walk{mark: unknown(4)}, maybe)
	switch {
	case name != "":
		w.add("-j " + name)
	case b.do != 0 && b.do != toOthers:
		w.verdict(b.do, b.chain)
	}
	return strings.Join(w.words, " ")
}

// netipMask is a mask that no prefix has.
func netipMask(mask []byte) string {
	a, _ := netip.AddrFromSlice(mask)
	return a.String()
}
