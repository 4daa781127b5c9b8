package packetfilter

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"golang.org/x/sys/unix"
)

// A legacyTable is a table of ip_tables as getsockopt(2) tells it: entries, one after another, that refer to each
// other by their offsets.
type legacyTable struct {
	v6     bool
	chains map[string][]rule
	starts map[int]string              // which chain begins at an offset
	drops  [unix.NF_INET_NUMHOOKS]bool // by hook: its policy is to drop
}

func (t *legacyTable) chain(name string) ([]rule, error) {
	rules, ok := t.chains[name]
	if !ok {
		return nil, fmt.Errorf("ip_tables chain %s: %w", name, unix.ENOENT)
	}
	return rules, nil
}

func (t *legacyTable) has(chain string) bool { _, ok := t.chains[chain]; return ok }

// A legacyRule is one entry: struct ipt_entry or ip6t_entry, its matches, its target.
type legacyRule struct {
	table          *legacyTable
	at             int // offset of the entry
	b              []byte
	target         int // offset in b
	place          int // among the rules of its chain, from 1
	flags, inverse byte
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

// builtIn is the chain of iptables at a hook.
func builtIn(hook int) string {
	return [...]string{Prerouting: "PREROUTING", Input: "INPUT", Forward: "FORWARD", Output: "OUTPUT",
		Postrouting: "POSTROUTING"}[hook]
}

// parseLegacy reads the entries of a table.
func parseLegacy(info xtables.LegacyInfo, b []byte, v6 bool) (*legacyTable, error) {
	t := &legacyTable{v6: v6, chains: map[string][]rule{}, starts: map[int]string{}}
	head, flags := 88, 82 // where an entry has the offsets of its target and of the next entry, and its flags
	if v6 {
		head, flags = 140, 131
	}
	chain := ""
	for at := 0; at+head+4 <= len(b); {
		target, next := int(binary.NativeEndian.Uint16(b[at+head:])), int(binary.NativeEndian.Uint16(b[at+head+2:]))
		if next < target+32 || at+next > len(b) || target < head+4 {
			return nil, fmt.Errorf("ip_tables entry at %d is malformed", at)
		}
		r := &legacyRule{table: t, at: at, b: b[at : at+next], target: target, flags: b[at+flags],
			inverse: b[at+flags+1]}
		policy := false
		for i := range info.Hooks {
			if info.ValidHooks>>i&1 == 0 {
				continue
			}
			if int(info.Hooks[i]) == at {
				chain = builtIn(i)
				t.chains[chain] = nil
			}
			if int(info.Underflow[i]) == at && r.name() == "" {
				policy = true
				t.drops[i] = r.code() == -1
			}
		}
		switch {
		case r.name() == "ERROR":
			if len(r.b) >= target+62 { // a chain begins behind it
				chain = text(r.b[target+32 : target+62])
				t.starts[at+next], t.chains[chain] = chain, nil
			}
		case !policy:
			r.place = len(t.chains[chain]) + 1
			t.chains[chain] = append(t.chains[chain], r)
		}
		at += next
	}
	return t, nil
}

// name is that of the target; the standard one has none.
func (r *legacyRule) name() string { return text(r.b[r.target+2 : r.target+31]) }

// code is the verdict of a standard target: an offset, or what the kernel returns less one, negative.
func (r *legacyRule) code() int {
	if len(r.b) < r.target+36 {
		return -1
	}
	return int(int32(binary.NativeEndian.Uint32(r.b[r.target+32:])))
}

func (r *legacyRule) number() uint64 { return uint64(r.place) }

// each calls fn for each thing that the first part of the entry asks for, in nft(8)'s words, with its value and mask.
func (r *legacyRule) each(fn func(name string, value, mask []byte, inverse byte)) {
	n, ip := 4, "ip"
	if r.table.v6 {
		n, ip = 16, "ip6"
	}
	part := func(at, size int) []byte { return r.b[at : at+size] }
	ask := func(name string, value, mask []byte, inverse byte) {
		if r.inverse&inverse != 0 || slices.ContainsFunc(mask, func(c byte) bool { return c != 0 }) {
			fn(name, value, mask, inverse)
		}
	}
	ask(ip+" saddr", part(0, n), part(2*n, n), invSrc)
	ask(ip+" daddr", part(n, n), part(3*n, n), invDst)
	ask("iifname", part(4*n, 16), part(4*n+32, 16), invIn)
	ask("oifname", part(4*n+16, 16), part(4*n+48, 16), invOut)
	if proto := binary.NativeEndian.Uint16(r.b[4*n+64:]); proto != 0 || r.table.v6 && r.flags&1 != 0 {
		fn("meta l4proto", []byte{byte(proto)}, []byte{0xff}, invProto)
	}
}

func (r *legacyRule) run(w *walk) []branch {
	t, why := yes, ""
	ask := func(u tri, what string) {
		if u == maybe && why == "" {
			why = what
		}
		t = min(t, u)
	}
	r.each(func(name string, value, mask []byte, inverse byte) {
		var have bits
		switch name[strings.IndexByte(name, ' ')+1:] {
		case "saddr":
			have = w.addr(w.p.Src)
		case "daddr":
			have = w.addr(w.p.Dst)
		case "iifname":
			have = w.inName()
		case "oifname":
			have = w.outName()
		default:
			have = w.proto()
		}
		if len(have.v) != len(value) {
			have = unknown(len(value))
		}
		ask(have.under(mask).is(exactly(value...).under(mask).v).not(r.inverse&inverse != 0), name)
	})
	if !r.table.v6 && r.flags&1 != 0 { // IPT_F_FRAG
		ask(no.not(r.inverse&invFrag != 0), "-f")
	}
	if t != no {
		r.matches(func(name string, rev byte, info []byte) { ask(w.match(name, uint32(rev), info), "-m "+name) })
	}
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
	if name := r.name(); name != "" {
		rev, info := uint32(r.b[r.target+31]), r.b[r.target+32:]
		do, why := w.target(name, rev, info, sure)
		b := branch{do: do, why: why}
		if do == toTranslate {
			b.to = w.targetTranslation(name, rev, info)
		}
		return b
	}
	isGoto := byte(2)
	if r.table.v6 {
		isGoto = 4
	}
	switch code := r.code(); {
	case code == -1: // NF_DROP
		return branch{do: toDrop}
	case code == -2: // NF_ACCEPT
		return branch{do: toAccept}
	case code == -5: // NF_REPEAT stands for RETURN
		return branch{do: toReturn}
	case code < 0:
		w.alter()
		return branch{do: toUnknown, why: "a program in user space"}
	case code == r.at+len(r.b): // on to the next
		return branch{}
	case r.flags&isGoto != 0:
		return branch{do: toGoto, chain: r.table.starts[code]}
	default:
		return branch{do: toJump, chain: r.table.starts[code]}
	}
}

func (r *legacyRule) text() string {
	var words []string
	r.each(func(name string, value, mask []byte, inv byte) {
		if strings.HasSuffix(name, "ifname") {
			value, mask = value[:onesIn(mask)/8], nil // with the zero that ends it, or only the first letters
		}
		words = append(words, name+" "+inverse(r.inverse&inv != 0)+valueText(name, value, mask, nil))
	})
	r.matches(func(name string, _ byte, info []byte) { words = append(words, matchText(name, info)) })
	if name := r.name(); name != "" {
		return strings.Join(append(words, "-j "+name), " ")
	}
	b := r.do(&walk{}, yes)
	return strings.Join(append(words, verdictText(b.do, b.chain)), " ")
}
