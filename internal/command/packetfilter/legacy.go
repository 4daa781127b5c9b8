package packetfilter

import (
	"encoding/binary"
	"fmt"
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

// A legacyRule is one entry.
type legacyRule struct {
	xtables.Entry
	table          *legacyTable
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
	flags := 82
	if v6 {
		flags = 131
	}
	chain := ""
	err := xtables.EachEntry(b, v6, func(e xtables.Entry) {
		policy := false
		for i := range info.Hooks {
			if info.ValidHooks>>i&1 == 0 {
				continue
			}
			if int(info.Hooks[i]) == e.At {
				chain = builtIn(i)
				t.chains[chain] = nil
			}
			if int(info.Underflow[i]) == e.At && e.TargetName() == "" {
				policy = true
				t.drops[i] = e.Verdict() == -1
			}
		}
		switch name := e.Chain(); {
		case name != "": // it begins behind the entry
			chain = name
			t.starts[e.At+len(e.Bytes)], t.chains[chain] = chain, nil
		case !policy && e.TargetName() != "ERROR":
			r := &legacyRule{e, t, len(t.chains[chain]) + 1, e.Bytes[flags], e.Bytes[flags+1]}
			t.chains[chain] = append(t.chains[chain], r)
		}
	})
	return t, err
}

func (r *legacyRule) number() uint64 { return uint64(r.place) }

// each calls fn for each thing that the first part of the entry asks for, in nft(8)'s words, with its value and mask.
func (r *legacyRule) each(fn func(name string, value, mask []byte, inverse byte)) {
	n, ip := 4, "ip"
	if r.table.v6 {
		n, ip = 16, "ip6"
	}
	part := func(at, size int) []byte { return r.Bytes[at : at+size] }
	ask := func(name string, value, mask []byte, inverse byte) {
		if r.inverse&inverse != 0 || onesIn(mask) > 0 {
			fn(name, value, mask, inverse)
		}
	}
	ask(ip+" saddr", part(0, n), part(2*n, n), invSrc)
	ask(ip+" daddr", part(n, n), part(3*n, n), invDst)
	ask("iifname", part(4*n, 16), part(4*n+32, 16), invIn)
	ask("oifname", part(4*n+16, 16), part(4*n+48, 16), invOut)
	if proto := binary.NativeEndian.Uint16(r.Bytes[4*n+64:]); proto != 0 || r.table.v6 && r.flags&1 != 0 {
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
		r.EachMatch(func(name string, rev byte, info []byte) { ask(w.match(name, uint32(rev), info), "-m "+name) })
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

// do is what the target does.
func (r *legacyRule) do(w *walk, sure tri) branch {
	if name := r.TargetName(); name != "" {
		return w.target(name, uint32(r.Bytes[r.Target+31]), r.Bytes[r.Target+32:], sure)
	}
	isGoto := byte(2)
	if r.table.v6 {
		isGoto = 4
	}
	switch code := r.Verdict(); {
	case code == -1: // NF_DROP
		return branch{do: toDrop}
	case code == -2: // NF_ACCEPT
		return branch{do: toAccept}
	case code == -5: // NF_REPEAT stands for RETURN
		return branch{do: toReturn}
	case code < 0:
		w.alter()
		return branch{do: toUnknown, why: "a program in user space"}
	case code == r.At+len(r.Bytes): // on to the next
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
	r.EachMatch(func(name string, _ byte, info []byte) { words = append(words, matchText(name, info)) })
	if name := r.TargetName(); name != "" {
		return strings.Join(append(words, "-j "+name), " ")
	}
	b := r.do(&walk{}, yes)
	return strings.Join(append(words, verdictText(b.do, b.chain)), " ")
}
