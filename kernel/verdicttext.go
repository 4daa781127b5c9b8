package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A wording is a rule while it is put into words: nft(8)'s, or iptables(8)'s if its program made the table. It is for
// a person who has to find the rule, not to be loaded again.
type wording struct {
	iptables bool
	family   byte
	proto    byte // that the rule asked for
	words    []string
	pending  string            // a condition that the next one may imply
	names    map[uint32]string // of what was loaded into a register
	masks    map[uint32][]byte
}

func (w *wording) add(words ...string) {
	if w.pending != "" {
		w.words, w.pending = append(w.words, w.pending), ""
	}
	w.words = append(w.words, words...)
}

// option is how iptables(8) asks for something, where it has a word.
func option(name string) string {
	switch name {
	case "ip saddr", "ip6 saddr":
		return "-s"
	case "ip daddr", "ip6 daddr":
		return "-d"
	case "iifname":
		return "-i"
	case "oifname":
		return "-o"
	case "meta l4proto", "ip protocol", "ip6 nexthdr":
		return "-p"
	case "tcp sport", "udp sport", "th sport":
		return "--sport"
	case "tcp dport", "udp dport", "th dport":
		return "--dport"
	case "meta mark":
		return "--mark"
	}
	return ""
}

// condition adds that what was loaded under a name is, or is not, a value.
func (w *wording) condition(name string, not bool, value string) {
	if o := option(name); w.iptables && o != "" {
		if not {
			o = "! " + o
		}
		w.add(o, strings.Trim(value, `"`))
		return
	}
	implied := name == "meta nfproto" || name == "meta l4proto"
	if not {
		name += " !="
	}
	if implied && !not {
		if w.pending != "" && !strings.HasPrefix(w.pending, "meta nfproto") {
			w.add()
		}
		w.pending = name + " " + value
		return
	}
	if first, _, _ := strings.Cut(name, " "); strings.HasPrefix(first, "ip") || first == "tcp" || first == "udp" {
		w.pending = "" // ip saddr says ipv4, and tcp dport says tcp
	}
	w.add(name, value)
}

func (r *nftRule) text() string {
	f := r.filter
	w := &wording{iptables: iptablesTable(f.family, f.table), family: f.family, names: map[uint32]string{}, masks: map[uint32][]byte{}}
	if w.iptables {
		w.words = []string{"-A", text(attr(r.body, unix.NFTA_RULE_CHAIN))}
	}
	r.each(func(name string, d []byte) bool {
		w.expression(name, d)
		return true
	})
	w.add()
	if c := comment(attr(r.body, unix.NFTA_RULE_USERDATA)); c != "" {
		w.words = append(w.words, "comment "+strconv.Quote(c))
	}
	return strings.Join(w.words, " ")
}

func (w *wording) expression(name string, d []byte) {
	load := func(dreg uint32, name string) {
		w.names[dreg] = name
		delete(w.masks, dreg)
	}
	switch name {
	case "meta":
		if attr(d, unix.NFTA_META_SREG) != nil {
			w.add(metaText(attr32(d, unix.NFTA_META_KEY)) + " set ...")
			return
		}
		load(attr32(d, unix.NFTA_META_DREG), metaText(attr32(d, unix.NFTA_META_KEY)))
	case "payload":
		load(attr32(d, unix.NFTA_PAYLOAD_DREG), payloadText(w.family, w.proto, attr32(d, unix.NFTA_PAYLOAD_BASE),
			int(attr32(d, unix.NFTA_PAYLOAD_OFFSET)), int(attr32(d, unix.NFTA_PAYLOAD_LEN))))
	case "ct":
		load(attr32(d, unix.NFTA_CT_DREG), ctText(attr32(d, unix.NFTA_CT_KEY)))
	case "fib":
		load(attr32(d, unix.NFTA_FIB_DREG), fibText(d))
	case "bitwise":
		sreg, dreg := attr32(d, unix.NFTA_BITWISE_SREG), attr32(d, unix.NFTA_BITWISE_DREG)
		w.names[dreg], w.masks[dreg] = w.names[sreg], attr(d, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE)
	case "byteorder":
		w.names[attr32(d, unix.NFTA_BYTEORDER_DREG)] = w.names[attr32(d, unix.NFTA_BYTEORDER_SREG)]
	case "cmp":
		w.compare(d)
	case "range":
		name := w.names[attr32(d, unix.NFTA_RANGE_SREG)]
		from := w.value(name, attr(d, unix.NFTA_RANGE_FROM_DATA, unix.NFTA_DATA_VALUE), nil)
		to := w.value(name, attr(d, unix.NFTA_RANGE_TO_DATA, unix.NFTA_DATA_VALUE), nil)
		w.condition(name, attr32(d, unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ, from+"-"+to)
	case "lookup":
		set := setText(text(attr(d, unix.NFTA_LOOKUP_SET)))
		sreg := attr32(d, unix.NFTA_LOOKUP_SREG)
		name := w.names[sreg]
		for i := uint32(1); i < 16; i++ { // a concatenation lies in words that follow each other
			if more, base := w.names[unix.NFT_REG32_00+i], sreg; more != "" && (base == unix.NFT_REG_1 || base == unix.NFT_REG32_00) {
				name += " . " + more
			}
		}
		if attr32(d, unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT && attr(d, unix.NFTA_LOOKUP_DREG) != nil {
			set = "vmap " + set
		}
		w.condition(name, attr32(d, unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0, set)
	case "immediate":
		if v := attr(d, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT); v != nil {
			do, _ := decided(int32(attr32(v, unix.NFTA_VERDICT_CODE)))
			w.verdict(do, text(attr(v, unix.NFTA_VERDICT_CHAIN)))
		}
	case "match":
		w.add(xtMatchText(text(attr(d, unix.NFTA_MATCH_NAME)), attr32(d, unix.NFTA_MATCH_REV), attr(d, unix.NFTA_MATCH_INFO)))
	case "target":
		w.add("-j " + text(attr(d, unix.NFTA_TARGET_NAME)))
	case "reject":
		if w.iptables {
			name = "-j REJECT"
		}
		w.add(name)
	case "counter":
	default:
		w.add(name)
	}
}

func (w *wording) verdict(do decision, chain string) {
	words := map[decision]string{toAccept: "accept", toDrop: "drop", toReturn: "return", toJump: "jump " + chain, toGoto: "goto " + chain}
	if w.iptables {
		words = map[decision]string{toAccept: "-j ACCEPT", toDrop: "-j DROP", toReturn: "-j RETURN", toJump: "-j " + chain, toGoto: "-g " + chain}
	}
	w.add(words[do])
}

func (w *wording) compare(d []byte) {
	sreg, v := attr32(d, unix.NFTA_CMP_SREG), attr(d, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
	name, mask, op := w.names[sreg], w.masks[sreg], attr32(d, unix.NFTA_CMP_OP)
	if name == "meta l4proto" || name == "ip protocol" {
		if len(v) == 1 && op == unix.NFT_CMP_EQ {
			w.proto = v[0]
		}
	}
	if name == "meta nfproto" && len(v) == 1 {
		w.family = v[0]
	}
	switch op {
	case unix.NFT_CMP_EQ, unix.NFT_CMP_NEQ:
		not := op == unix.NFT_CMP_NEQ
		if strings.HasPrefix(name, "ct st") && mask != nil { // (ct state & these) != 0
			v, mask, not = mask, nil, !not
		}
		w.condition(name, not, w.value(name, v, mask))
	default:
		w.add(name, []string{"<", "<=", ">", ">="}[(op-unix.NFT_CMP_LT)%4], w.value(name, v, mask))
	}
}

// value is a value as nft(8) prints those of what was loaded under that name.
func (w *wording) value(name string, v, mask []byte) string {
	switch {
	case strings.HasSuffix(name, "addr") && (len(v) == 4 || len(v) == 16):
		a, _ := netip.AddrFromSlice(v)
		if ones := prefixLen(mask); mask != nil && ones >= 0 {
			return netip.PrefixFrom(a, ones).String()
		}
		return a.String()
	case strings.HasSuffix(name, "addr") && len(v) < 16: // the first bytes alone are compared
		size := 4
		if strings.HasPrefix(name, "ip6") {
			size = 16
		}
		if a, ok := netip.AddrFromSlice(append(append([]byte(nil), v...), make([]byte, max(size-len(v), 0))...)); ok {
			return netip.PrefixFrom(a, 8*len(v)).String()
		}
	case name == "iifname" || name == "oifname":
		wild := "*"
		if w.iptables {
			wild = "+"
		}
		if s := text(v); len(s) < len(v) {
			return strconv.Quote(s)
		} else {
			return strconv.Quote(s + wild)
		}
	case (strings.HasSuffix(name, "port")) && len(v) == 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(v)))
	case (name == "meta l4proto" || name == "ip protocol" || name == "ip6 nexthdr") && len(v) == 1:
		return ProtoName(v[0])
	case name == "meta nfproto" && len(v) == 1:
		return map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}[v[0]]
	case name == "ct state" && len(v) == 4:
		return flagsText(native32(v), false)
	case name == "ct status" && len(v) == 4:
		if native32(v) == ctStatusDNAT {
			return "dnat"
		}
	case strings.HasSuffix(name, " type") && len(v) == 4:
		if kind := native32(v); kind < 6 {
			return [...]string{"unspec", "unicast", "local", "broadcast", "anycast", "multicast"}[kind]
		}
	case (name == "meta mark" || name == "ct mark") && len(v) == 4:
		s := fmt.Sprintf("0x%x", native32(v))
		if mask != nil {
			s += fmt.Sprintf("/0x%x", native32(mask))
		}
		return s
	}
	return fmt.Sprintf("0x%x", v)
}

// prefixLen is how many ones a mask begins with, if nothing but zeros follows.
func prefixLen(mask []byte) int {
	n := 0
	for _, b := range mask {
		for i := 7; i >= 0; i-- {
			if b>>i&1 == 0 {
				continue
			}
			n++
		}
	}
	for i := range mask {
		if want := byte(0xff << max(0, 8-max(0, n-8*i))); n >= 8*(i+1) && mask[i] != 0xff || n < 8*(i+1) && mask[i] != want {
			return -1
		}
	}
	return n
}
