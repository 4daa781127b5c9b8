package packetfilter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	mathbits "math/bits"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// Rules in nft(8)'s words, for a person who has to find them, not to be loaded again.

func metaText(key uint32) string {
	names := map[uint32]string{
		unix.NFT_META_LEN: "meta length", unix.NFT_META_PROTOCOL: "meta protocol", unix.NFT_META_MARK: "meta mark",
		unix.NFT_META_IIF: "iif", unix.NFT_META_OIF: "oif", unix.NFT_META_IIFNAME: "iifname",
		unix.NFT_META_OIFNAME: "oifname", unix.NFT_META_NFPROTO: "meta nfproto", unix.NFT_META_L4PROTO: "meta l4proto",
		unix.NFT_META_PKTTYPE: "meta pkttype", unix.NFT_META_SKUID: "meta skuid", unix.NFT_META_SKGID: "meta skgid",
	}
	if s := names[key]; s != "" {
		return s
	}
	return fmt.Sprintf("meta key %d", key)
}

func ctText(key uint32) string {
	if words := []string{"state", "direction", "status", "mark"}; key < uint32(len(words)) {
		return "ct " + words[key]
	}
	return fmt.Sprintf("ct key %d", key)
}

func fibText(d []byte) string {
	s := "fib saddr"
	if attr32(d, unix.NFTA_FIB_FLAGS)&fibDaddr != 0 {
		s = "fib daddr"
	}
	if attr32(d, unix.NFTA_FIB_RESULT) == unix.NFT_FIB_RESULT_ADDRTYPE {
		s += " type"
	}
	return s
}

// payloadText is a piece of a header. That of an address may be its first bytes alone.
func payloadText(family byte, base uint32, at, size int) string {
	fields := map[int]string{}
	switch {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && family == unix.NFPROTO_IPV6:
		fields = map[int]string{6: "ip6 nexthdr", 7: "ip6 hoplimit", 8: "ip6 saddr", 24: "ip6 daddr"}
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		fields = map[int]string{2: "ip length", 6: "ip frag-off", 8: "ip ttl", 9: "ip protocol", 12: "ip saddr",
			16: "ip daddr"}
	case base == unix.NFT_PAYLOAD_LL_HEADER:
		fields = map[int]string{0: "ether daddr", 6: "ether saddr", 12: "ether type"}
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && size == 2:
		fields = map[int]string{0: "th sport", 2: "th dport"}
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && size == 1:
		fields = map[int]string{0: "icmp type", 1: "icmp code", 13: "tcp flags"}
	}
	if s := fields[at]; s != "" {
		return s
	}
	return fmt.Sprintf("@header %d,%d,%d", base, 8*at, 8*size)
}

func verdictText(do decision, chain string) string {
	return strings.TrimSpace([]string{"", "accept", "drop", "jump", "goto", "return", "queue", ""}[do] + " " + chain)
}

// nftVerdictText is a verdict (NFTA_VERDICT_…).
func nftVerdictText(v []byte) string {
	do, _ := decided(int32(attr32(v, unix.NFTA_VERDICT_CODE)))
	return verdictText(do, attrText(v, unix.NFTA_VERDICT_CHAIN))
}

// A wording is a rule while it is put into words.
type wording struct {
	family byte
	words  []string
	loaded []string // what is loaded for the next condition
	asked  string   // what the last one was about: the next one may be about the same
	mask   []byte
	order  binary.ByteOrder // of the loaded number; nil is that of its kind, see orderOf
}

func (r *nftRule) text() string {
	w := wording{family: r.table.Family}
	r.each(func(name string, d []byte) bool {
		w.expression(name, d)
		return true
	})
	if c := nft.RuleComment(attr(r.body, unix.NFTA_RULE_USERDATA)); c != "" {
		w.add("comment " + strconv.Quote(c))
	}
	return strings.Join(w.words, " ")
}

func (w *wording) add(word string) { w.words = append(w.words, word) }

func (w *wording) load(what string) { w.loaded = append(w.loaded, what) }

func (w *wording) expression(name string, d []byte) {
	if slices.Contains([]string{"meta", "payload", "ct", "fib"}, name) && len(w.loaded) == 0 {
		w.order = nil
	}
	switch name {
	case "meta":
		if attr(d, unix.NFTA_META_SREG) != nil {
			w.add(metaText(attr32(d, unix.NFTA_META_KEY)) + " set ...")
			w.loaded = nil
			return
		}
		w.load(metaText(attr32(d, unix.NFTA_META_KEY)))
	case "payload":
		w.load(payloadText(w.family, attr32(d, unix.NFTA_PAYLOAD_BASE),
			int(attr32(d, unix.NFTA_PAYLOAD_OFFSET)), int(attr32(d, unix.NFTA_PAYLOAD_LEN))))
	case "ct":
		w.load(ctText(attr32(d, unix.NFTA_CT_KEY)))
	case "fib":
		w.load(fibText(d))
	case "bitwise":
		w.mask = value(d, unix.NFTA_BITWISE_MASK)
	case "byteorder": // nft(8) compares a number of the host with a range in network order
		w.order = binary.NativeEndian
		if attr32(d, unix.NFTA_BYTEORDER_OP) == unix.NFT_BYTEORDER_HTON {
			w.order = binary.BigEndian
		}
	case "counter":
	case "cmp":
		w.compare(value(d, unix.NFTA_CMP_DATA), attr32(d, unix.NFTA_CMP_OP))
	case "range":
		from, to := value(d, unix.NFTA_RANGE_FROM_DATA), value(d, unix.NFTA_RANGE_TO_DATA)
		w.condition(inverse(attr32(d, unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ),
			valueText(w.about(), from, nil, w.order)+"-"+valueText(w.about(), to, nil, w.order))
	case "lookup":
		op := inverse(attr32(d, unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0)
		if attr(d, unix.NFTA_LOOKUP_DREG) != nil {
			op = "vmap "
		}
		w.condition(op, setText(attrText(d, unix.NFTA_LOOKUP_SET)))
	case "immediate":
		if v := attr(d, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT); v != nil {
			w.add(nftVerdictText(v))
		}
	case "match":
		w.add(matchText(attrText(d, unix.NFTA_MATCH_NAME), attr(d, unix.NFTA_MATCH_INFO)))
	case "target":
		w.add("-j " + attrText(d, unix.NFTA_TARGET_NAME))
	case "nat":
		w.add([]string{"snat", "dnat"}[attr32(d, unix.NFTA_NAT_TYPE)&1])
	case "redir":
		w.add("redirect")
	case "masq":
		w.add("masquerade")
	default:
		w.add(name)
	}
}

func inverse(inv bool) string {
	if inv {
		return "!= "
	}
	return ""
}

// about is what the next condition is about.
func (w *wording) about() string {
	if len(w.loaded) > 0 {
		w.asked = strings.Join(w.loaded, " . ")
	}
	return w.asked
}

// condition adds one, in the place of one that it implies.
func (w *wording) condition(op, value string) {
	s := strings.TrimSpace(strings.Join(w.loaded, " . ") + " " + op + value)
	if last := len(w.words) - 1; last >= 0 {
		proto, isProto := strings.CutPrefix(w.words[last], "meta l4proto ")
		switch {
		case strings.HasPrefix(w.words[last], "meta nfproto ") && strings.HasPrefix(s, "ip"):
			w.words = w.words[:last]
		case isProto && strings.HasPrefix(s, "th ") && !strings.ContainsAny(proto, " {@"):
			w.words, s = w.words[:last], proto+strings.TrimPrefix(s, "th")
		}
	}
	w.words, w.loaded, w.mask = append(w.words, s), nil, nil
}

func (w *wording) compare(v []byte, op uint32) {
	about, mask := w.about(), w.mask
	if about == "meta nfproto" && len(v) == 1 {
		w.family = v[0]
	}
	if strings.HasPrefix(about, "ct st") && mask != nil && op == unix.NFT_CMP_NEQ { // (ct state & these) != 0
		v, mask, op = mask, nil, unix.NFT_CMP_EQ
	}
	w.condition([]string{"", "!= ", "< ", "<= ", "> ", ">= ", "", ""}[op&7], valueText(about, v, mask, w.order))
}

func matchText(name string, info []byte) string {
	if name == "comment" {
		return "comment " + strconv.Quote(text(info))
	}
	return "-m " + name
}

// orderOf is the byte order of the numbers of what was loaded under that name: those of a packet come in network order,
// and those of the kernel in the host's.
func orderOf(name string) binary.ByteOrder {
	ofKernel := strings.HasPrefix(name, "meta ") && name != "meta protocol" || strings.HasPrefix(name, "ct ") ||
		strings.HasPrefix(name, "fib ") || name == "iif" || name == "oif"
	if ofKernel {
		return binary.NativeEndian
	}
	return binary.BigEndian
}

// valueText is a value as nft(8) prints those of what was loaded under that name. The order of a number is that of its
// kind if it is nil.
func valueText(name string, v, mask []byte, order binary.ByteOrder) string {
	if order == nil {
		order = orderOf(name)
	}
	switch {
	case strings.HasPrefix(name, "ether ") && len(v) == 6:
		return net.HardwareAddr(v).String()
	case strings.HasSuffix(name, "addr"):
		size := 4
		if strings.HasPrefix(name, "ip6") {
			size = 16
		}
		if mask == nil {
			mask = bytes.Repeat([]byte{0xff}, len(v))
		}
		rest := make([]byte, max(size-len(v), 0))
		return addrText(append(slices.Clone(v), rest...), append(slices.Clone(mask), rest...))
	case name == "iifname" || name == "oifname":
		if s := text(v); len(s) < len(v) {
			return strconv.Quote(s)
		}
		return strconv.Quote(text(v) + "*")
	case strings.HasSuffix(name, "port") && len(v) == 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(v)))
	case (name == "meta l4proto" || name == "ip protocol" || name == "ip6 nexthdr") && len(v) == 1:
		return kernel.ProtoName(v[0])
	case name == "meta nfproto" && len(v) == 1 && v[0] == unix.NFPROTO_IPV4:
		return "ipv4"
	case name == "meta nfproto" && len(v) == 1 && v[0] == unix.NFPROTO_IPV6:
		return "ipv6"
	case name == "ct state" && len(v) == 4:
		return bitNames(order.Uint32(v), "invalid", "established", "related", "new", "", "", "untracked")
	case name == "ct status" && len(v) == 4:
		return bitNames(order.Uint32(v), "expected", "seen-reply", "assured", "confirmed", "snat", "dnat")
	case slices.Contains([]string{"meta length", "meta skuid", "meta skgid", "iif", "oif"}, name) && len(v) == 4:
		return strconv.FormatUint(uint64(order.Uint32(v)), 10)
	case len(v) == 4:
		form := "0x%08x" // it may be an address, and shall be seen to have so many bits
		if strings.HasSuffix(name, "mark") {
			form = "0x%x"
		}
		text := fmt.Sprintf(form, order.Uint32(v))
		if len(mask) == 4 {
			text += fmt.Sprintf("/"+form, order.Uint32(mask))
		}
		return text
	case len(v) == 2:
		return fmt.Sprintf("0x%04x", order.Uint16(v))
	}
	return fmt.Sprintf("0x%x", v)
}

// bitNames are the names of the bits that a value has.
func bitNames(v uint32, names ...string) string {
	var words []string
	for i, name := range names {
		if name != "" && v>>i&1 != 0 {
			words = append(words, name)
		}
	}
	return strings.Join(words, ",")
}

// addrText is an address, a prefix of its first bits, or both with a mask that is none.
func addrText(v, mask []byte) string {
	a, ok := netip.AddrFromSlice(v)
	m, _ := netip.AddrFromSlice(mask)
	switch ones := onesIn(mask); {
	case !ok:
		return fmt.Sprintf("0x%x", v)
	case ones == 8*len(v):
		return a.String()
	case bytes.Equal(mask, net.CIDRMask(ones, 8*len(v))):
		return netip.PrefixFrom(a, ones).String()
	}
	return a.String() + "/" + m.String()
}

func onesIn(mask []byte) (n int) {
	for _, b := range mask {
		n += mathbits.OnesCount8(b)
	}
	return n
}
