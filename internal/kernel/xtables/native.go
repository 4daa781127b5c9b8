package xtables

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// ChainRules reads the rules of an nf_tables chain, without words. V6 is the family of its addresses. A chain that
// does not exist has none.
func ChainRules(n *nft.Conn, t *nft.Table, chain string, v6 bool) (rules []Rule, err error) {
	err = n.EachRule(t, chain, func(body []byte) { rules = append(rules, parseNative(chain, body, v6)) })
	return rules, err
}

func builtinChain(name string) bool {
	return slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, name)
}

// parseNative reads what iptables-nft writes, and the reference by nft(8): addresses, protocol and port as native
// comparisons, a comment as user data or as a match of xtables, a jump as a verdict.
func parseNative(chain string, body []byte, v6 bool) Rule {
	r := nativeReader{rule: Rule{Chain: chain, Comment: nft.RuleComment(netlink.Attr(body, unix.NFTA_RULE_USERDATA))},
		v6:   v6,
		bits: -1, loaded: map[uint32][]byte{}}
	r.rule.handle = netlink.Attr64(body, unix.NFTA_RULE_HANDLE)
	netlink.EachAttr(netlink.Attr(body, unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, expr []byte) {
		r.read(netlink.AttrText(expr, unix.NFTA_EXPR_NAME), netlink.Attr(expr, unix.NFTA_EXPR_DATA))
	})
	return r.rule
}

// A nativeReader reads the expressions of a rule, one after the other.
type nativeReader struct {
	rule Rule
	v6   bool

	compare func(v []byte)    // with what was loaded last; nil: nothing that counts
	bits    int               // of what was loaded
	port    bool              // was loaded
	loaded  map[uint32][]byte // constants, by register
}

func (r *nativeReader) read(name string, data []byte) {
	switch name {
	case "meta":
		r.compare = nil
		if netlink.Attr32(data, unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO {
			r.compare = func(v []byte) { r.rule.Proto = kernel.ProtoName(v[0]) }
		}
	case "payload":
		r.payload(data)
	case "bitwise":
		r.bits = 0
		for _, b := range value(data, unix.NFTA_BITWISE_MASK) {
			for ; b&0x80 != 0; b <<= 1 {
				r.bits++
			}
		}
	case "cmp":
		v := value(data, unix.NFTA_CMP_DATA)
		if _, size := nft.AddressField(r.v6, false); r.compare != nil && len(v) > 0 && len(v) <= int(size) &&
			netlink.Attr32(data, unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
			r.compare(v)
		}
		r.compare = nil
	case "range":
		from := value(data, unix.NFTA_RANGE_FROM_DATA)
		to := value(data, unix.NFTA_RANGE_TO_DATA)
		if r.port && len(from) == 2 && len(to) == 2 && netlink.Attr32(data, unix.NFTA_RANGE_OP) == unix.NFT_CMP_EQ {
			r.rule.Ports = [][2]uint16{{netlink.Net16(from), netlink.Net16(to)}}
		}
	case "match":
		r.rule.parseMatch(netlink.AttrText(data, unix.NFTA_MATCH_NAME),
			netlink.Attr(data, unix.NFTA_MATCH_INFO))
	case "target":
		r.rule.Jump = netlink.AttrText(data, unix.NFTA_TARGET_NAME)
		if r.rule.Jump == "DNAT" {
			info := netlink.Attr(data, unix.NFTA_TARGET_INFO)
			to, _ := ParseNAT(netlink.Attr32(data, unix.NFTA_TARGET_REV), info, r.v6)
			r.rule.To = netip.AddrPortFrom(to.First, to.FirstPort)
		}
	case "nat":
		if r.rule.Jump = "SNAT"; netlink.Attr32(data, unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
			r.rule.Jump = "DNAT"
			a, _ := netip.AddrFromSlice(r.loaded[netlink.Attr32(data, unix.NFTA_NAT_REG_ADDR_MIN)])
			port := netlink.Net16(r.loaded[netlink.Attr32(data, unix.NFTA_NAT_REG_PROTO_MIN)])
			r.rule.To = netip.AddrPortFrom(a, port)
		}
	case "masq":
		r.rule.Jump = "MASQUERADE"
	case "immediate":
		r.immediate(data)
	}
}

// value is an attribute that holds a value of a register.
func value(data []byte, kind uint16) []byte { return netlink.Attr(data, kind, unix.NFTA_DATA_VALUE) }

// payload loads a part of the packet.
func (r *nativeReader) payload(data []byte) {
	src, size := nft.AddressField(r.v6, false)
	dst, _ := nft.AddressField(r.v6, true)
	prefix := func(p *netip.Prefix) func([]byte) {
		return func(v []byte) {
			if a, ok := netip.AddrFromSlice(append(v[:len(v):len(v)], make([]byte, int(size)-len(v))...)); ok {
				*p = netip.PrefixFrom(a, r.bits)
			}
		}
	}
	n, offset := netlink.Attr32(data, unix.NFTA_PAYLOAD_LEN), netlink.Attr32(data, unix.NFTA_PAYLOAD_OFFSET)
	r.compare, r.bits, r.port = nil, int(8*n), false
	switch base := netlink.Attr32(data, unix.NFTA_PAYLOAD_BASE); {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && n <= size && offset == src:
		r.compare = prefix(&r.rule.Src)
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && n <= size && offset == dst:
		r.compare = prefix(&r.rule.Dst)
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && n == 2 && offset == 2:
		r.port = true
		r.compare = func(v []byte) {
			if len(v) == 2 {
				n := netlink.Net16(v)
				r.rule.Ports = [][2]uint16{{n, n}}
			}
		}
	}
}

// immediate loads a constant, or is a verdict.
func (r *nativeReader) immediate(data []byte) {
	if v := value(data, unix.NFTA_IMMEDIATE_DATA); v != nil {
		r.loaded[netlink.Attr32(data, unix.NFTA_IMMEDIATE_DREG)] = v
		return
	}
	verdict := netlink.Attr(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT)
	switch code := int32(netlink.Attr32(verdict, unix.NFTA_VERDICT_CODE)); code {
	case unix.NFT_JUMP, unix.NFT_GOTO:
		r.rule.Jump = netlink.AttrText(verdict, unix.NFTA_VERDICT_CHAIN)
	case nft.Accept:
		r.rule.Jump = "ACCEPT"
	case 0:
		r.rule.Jump = "DROP"
	case unix.NFT_RETURN:
		r.rule.Jump = "RETURN"
	}
}

// parseMatch reads what is wanted of a match of xtables: its structures are the kernel's.
func (r *Rule) parseMatch(name string, info []byte) {
	switch {
	case name == "comment":
		r.Comment = netlink.Text(info)
	case name == "multiport" && len(info) >= 47 && info[0] == 1:
		r.Ports = Multiports(info)
	case (name == "tcp" || name == "udp") && len(info) >= 8:
		r.Ports = portsAsked(info[4:])
	case name == "sctp" && len(info) >= 4 && netlink.U16(info[2:]) != 0:
		// struct xt_sctp_info has the destination's ports first, and 0 where none were asked for
		r.Ports = portsAsked(info)
	}
}

// portsAsked are the first and the last port that info begins with, none where all match.
func portsAsked(info []byte) [][2]uint16 {
	first, last := netlink.U16(info), netlink.U16(info[2:])
	if first == 0 && last == 0xffff {
		return nil
	}
	return [][2]uint16{{first, last}}
}

// Multiports returns the first and last ports of a multiport match. Info holds flags, a count, 15 ports and 15 range
// marks.
func Multiports(info []byte) (ports [][2]uint16) {
	count := min(int(info[1]), 15)
	for i := 0; i < count; i++ {
		first := netlink.U16(info[2+2*i:])
		last := first
		if info[32+i] != 0 && i+1 < count { // the next one is the end of a range
			i++
			last = netlink.U16(info[2+2*i:])
		}
		ports = append(ports, [2]uint16{first, last})
	}
	return ports
}

// A NATRange is what a target of iptables translates to: struct nf_nat_ipv4_range or nf_nat_range.
type NATRange struct {
	Flags               uint32 // NF_NAT_RANGE_…
	First, Last         netip.Addr
	FirstPort, LastPort uint16
}

// ParseNAT reads the structure of a target of this revision. It returns false if the structure is too short.
func ParseNAT(revision uint32, info []byte, v6 bool) (r NATRange, ok bool) {
	used, size := 16, 16
	if !v6 {
		used = 4
	}
	if !v6 && revision == 0 {
		size = 4
		info = info[min(len(info), 4):] // behind a count
	}
	if len(info) < 4+2*size+4 {
		return r, false
	}
	first, last, ports := info[4:], info[4+size:], info[4+2*size:]
	r.Flags = netlink.U32(info)
	r.First, _ = netip.AddrFromSlice(first[:used])
	r.Last, _ = netip.AddrFromSlice(last[:used])
	r.FirstPort, r.LastPort = netlink.Net16(ports), netlink.Net16(ports[2:])
	return r, true
}
