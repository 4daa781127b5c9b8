package nft

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Rule collects the expressions of a rule. They use the order and the registers that nft(8) itself would use,
// because nft(8) recognizes only those when it prints a rule.
type Rule struct {
	comment string
	plain   bool // the comment is no more than what it was made with
	jumps   string
	code    netlink.Buffer // the expressions
}

// NewRule returns an empty rule with a comment that says what the rule is for.
func NewRule(comment string) *Rule {
	return &Rule{comment: comment, code: make(netlink.Buffer, 0, 240)} // which most rules have room in
}

// Comment returns the comment that the kernel stores: the text, and a hash of the expressions. The hash distinguishes
// the rule from one that was changed or that another version of this program made.
func (r *Rule) Comment() string {
	if r.plain {
		return r.comment
	}
	h := sha256.Sum256(r.code)
	return r.comment + " " + hex.EncodeToString(h[:4])
}

// Clone returns a copy of the rule that can be changed.
func (r *Rule) Clone() *Rule {
	c := *r
	c.code = slices.Clone(r.code)
	return &c
}

// Code returns a hash of the expressions. Rules with different expressions have different codes.
func (r *Rule) Code() string {
	h := sha256.Sum256(r.code)
	return hex.EncodeToString(h[:6])
}

// Family appends "meta nfproto ipv4" or "meta nfproto ipv6".
func (r *Rule) Family(v6 bool) *Rule {
	return r.meta(unix.NFT_META_NFPROTO, reg(0)).cmp(unix.NFT_CMP_EQ, []byte{Family(v6)})
}

// Prefix appends "ip saddr p", "ip6 daddr != p" and so on, without the family.
func (r *Rule) Prefix(dst, not bool, p netip.Prefix) *Rule {
	offset, size := AddressField(p.Addr().Is6(), dst)
	r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg(0))
	if p.Bits() < p.Addr().BitLen() {
		r.bitwise(prefixMask(size, p.Bits()))
	}
	return r.cmp(op(not), p.Masked().Addr().AsSlice())
}

// FromPrefix appends "ip saddr p" or "ip6 saddr p".
func (r *Rule) FromPrefix(p netip.Prefix) *Rule { return r.inPrefix(false, p) }

// TowardPrefix appends "ip daddr p" or "ip6 daddr p".
func (r *Rule) TowardPrefix(p netip.Prefix) *Rule { return r.inPrefix(true, p) }

// A Side is the source of a packet with its incoming link, or its destination with its outgoing link.
type Side bool

// The sides of a packet.
const (
	Src Side = false
	Dst Side = true
)

// SubnetBy appends "ip saddr & mask . iifname @set", of either side of the packet for each, without the family.
func (r *Rule) SubnetBy(side, link Side, not bool, set *Set) *Rule {
	key := uint32(unix.NFT_META_IIFNAME)
	if link == Dst {
		key = unix.NFT_META_OIFNAME
	}
	next := r.subnet(0, side, set)
	return r.meta(key, reg(next)).lookup(set, not)
}

// Subnets appends "ip saddr & mask . ip daddr & mask @set", of either side of the packet for each, without the family.
func (r *Rule) Subnets(a, b Side, set *Set) *Rule {
	r.subnet(r.subnet(0, a, set), b, set)
	return r.lookup(set, false)
}

// Iifname appends `iifname "name"`; a name that ends in * stands for all that begin so.
func (r *Rule) Iifname(not bool, name string) *Rule {
	v := append([]byte(name), make([]byte, 16)...)[:16]
	if n := len(name); n > 0 && name[n-1] == '*' {
		v = []byte(name[:n-1])
	}
	return r.meta(unix.NFT_META_IIFNAME, reg(0)).cmp(op(not), v)
}

// Iifkind appends `iifkind "kind"`.
func (r *Rule) Iifkind(kind string) *Rule {
	return r.meta(metaIifkind, reg(0)).cmp(unix.NFT_CMP_EQ, append([]byte(kind), make([]byte, 16)...)[:16])
}

// NotLo appends `iif != "lo"`: lo has the index 1 in every namespace.
func (r *Rule) NotLo() *Rule {
	return r.meta(unix.NFT_META_IIF, reg(0)).cmp(unix.NFT_CMP_NEQ, binary.NativeEndian.AppendUint32(nil, 1))
}

// Mark appends "meta mark & mask value".
func (r *Rule) Mark(not bool, value, mask uint32) *Rule {
	r.meta(unix.NFT_META_MARK, reg(0))
	if mask != 0xffffffff {
		r.bitwise(binary.NativeEndian.AppendUint32(nil, mask))
	}
	return r.cmp(op(not), binary.NativeEndian.AppendUint32(nil, value))
}

// Proto appends "meta l4proto proto".
func (r *Rule) Proto(not bool, proto byte) *Rule {
	return r.meta(unix.NFT_META_L4PROTO, reg(0)).cmp(op(not), []byte{proto})
}

// Port appends "th sport from-to", or dport, of whatever has ports.
func (r *Rule) Port(dst, not bool, from, to uint16) *Rule {
	offset := uint32(0)
	if dst {
		offset = 2
	}
	r.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, 2, reg(0))
	if from == to {
		return r.cmp(op(not), Key(from))
	}
	return r.expr("range", func() {
		r.code.U32(unix.NFTA_RANGE_SREG, reg(0))
		r.code.U32(unix.NFTA_RANGE_OP, op(not)) // NFT_RANGE_EQ and _NEQ have the numbers of NFT_CMP_…
		putValue(&r.code, unix.NFTA_RANGE_FROM_DATA, Key(from))
		putValue(&r.code, unix.NFTA_RANGE_TO_DATA, Key(to))
	})
}

// ToLocal appends "fib daddr type local".
func (r *Rule) ToLocal() *Rule { return r.local(false) }

// NotToLocal appends "fib daddr type != local".
func (r *Rule) NotToLocal() *Rule { return r.local(true) }

// Translated appends "ct status dnat".
func (r *Rule) Translated() *Rule { return r.status(ctStatusDNAT, unix.NFT_CMP_NEQ) }

// Unconfirmed appends "ct status ! confirmed": of a connection that conntrack has no entry of yet.
func (r *Rule) Unconfirmed() *Rule { return r.status(ctStatusConfirmed, unix.NFT_CMP_EQ) }

// Confirmed appends "ct status confirmed".
func (r *Rule) Confirmed() *Rule { return r.status(ctStatusConfirmed, unix.NFT_CMP_NEQ) }

// Expected appends "ct status expected": of a connection that a helper of another one has announced.
func (r *Rule) Expected() *Rule { return r.status(ctStatusExpected, unix.NFT_CMP_NEQ) }

// Reply appends "ct state established ct direction reply".
func (r *Rule) Reply() *Rule { return r.inState(ctEstablished).direction(ctReply) }

// Related appends "ct state related".
func (r *Rule) Related() *Rule { return r.inState(ctRelated) }

// New appends "ct state new".
func (r *Rule) New() *Rule { return r.inState(ctNew) }

// In appends "iifname @set".
func (r *Rule) In(set *Set) *Rule {
	return r.meta(unix.NFT_META_IIFNAME, reg(0)).lookup(set, false)
}

// Out appends "oifname @set".
func (r *Rule) Out(set *Set) *Rule {
	return r.meta(unix.NFT_META_OIFNAME, reg(0)).lookup(set, false)
}

// Between appends "iifname . oifname @set".
func (r *Rule) Between(set *Set) *Rule {
	return r.meta(unix.NFT_META_IIFNAME, reg(0)).meta(unix.NFT_META_OIFNAME, reg(4)).lookup(set, false)
}

// SetMark appends "meta mark set meta mark | bits".
func (r *Rule) SetMark(bits uint32) *Rule { return r.changeMark(bits, bits) }

// ClearMark appends "meta mark set meta mark & ~bits".
func (r *Rule) ClearMark(bits uint32) *Rule { return r.changeMark(bits, 0) }

// changeMark gives bits of the mark the values that they have in to.
func (r *Rule) changeMark(bits, to uint32) *Rule {
	r.meta(unix.NFT_META_MARK, reg(0)).expr("bitwise", func() {
		r.code.U32(unix.NFTA_BITWISE_SREG, reg(0))
		r.code.U32(unix.NFTA_BITWISE_DREG, reg(0))
		r.code.U32(unix.NFTA_BITWISE_LEN, 4)
		putValue(&r.code, unix.NFTA_BITWISE_MASK, binary.NativeEndian.AppendUint32(nil, ^bits))
		putValue(&r.code, unix.NFTA_BITWISE_XOR, binary.NativeEndian.AppendUint32(nil, to))
	})
	return r.expr("meta", func() {
		r.code.U32(unix.NFTA_META_SREG, reg(0))
		r.code.U32(unix.NFTA_META_KEY, unix.NFT_META_MARK)
	})
}

// Label appends "ct label bit", or "ct label ! bit". There are 128.
func (r *Rule) Label(not bool, bit int) *Rule {
	return r.ct(unix.NFT_CT_LABELS, false, reg(0)).bitwise(label(bit)).cmp(op(!not), make([]byte, 16))
}

// SetLabel appends "ct label set bit". Others stay.
func (r *Rule) SetLabel(bit int) *Rule {
	return r.expr("immediate", func() {
		r.code.U32(unix.NFTA_IMMEDIATE_DREG, reg(0))
		putValue(&r.code, unix.NFTA_IMMEDIATE_DATA, label(bit))
	}).expr("ct", func() {
		r.code.U32(unix.NFTA_CT_KEY, unix.NFT_CT_LABELS)
		r.code.U32(unix.NFTA_CT_SREG, reg(0))
	})
}

// NewOrRelated appends "ct state new,related".
func (r *Rule) NewOrRelated() *Rule { return r.inState(ctNew | ctRelated) }

// Protocol appends "meta protocol type", of a frame without its first VLAN tag.
func (r *Rule) Protocol(etherType uint16) *Rule {
	return r.meta(unix.NFT_META_PROTOCOL, reg(0)).cmp(unix.NFT_CMP_EQ, Key(etherType))
}

// VLAN0 appends "@ll,116,12 0": of a frame that has a VLAN tag, that this is VLAN 0; or "@nh,4,12 0", of its
// second tag. Nothing before it may ask for the protocol, because nft(8) then ends with a failed assertion when it
// prints the rule.
func (r *Rule) VLAN0(second bool) *Rule {
	base, offset := uint32(unix.NFT_PAYLOAD_LL_HEADER), uint32(14)
	if second {
		base, offset = unix.NFT_PAYLOAD_NETWORK_HEADER, 0
	}
	return r.payload(base, offset, 2, reg(0)).bitwise(Key(uint16(0x0fff))).cmp(unix.NFT_CMP_EQ, Key(uint16(0)))
}

// A Claim is an address that the sender of a frame claims to have.
type Claim int

// The claims.
const (
	ClaimIP  Claim = iota // source address of a packet
	ClaimIP6              // the same
	ClaimARP              // sender of an ARP message
)

// claimed loads the address of a claim.
func (r *Rule) claimed(c Claim, dreg uint32) *Rule {
	offset, size := AddressField(c == ClaimIP6, false)
	if c == ClaimARP {
		offset = 14
	}
	return r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, dreg)
}

// Claims appends "ip saddr @addresses iifname . ip saddr != @pairs", without the family, for a claimed address.
func (r *Rule) Claims(c Claim, addresses, pairs *Set) *Rule {
	return r.claimed(c, reg(0)).lookup(addresses, false).
		meta(unix.NFT_META_IIFNAME, reg(0)).claimed(c, reg(4)).lookup(pairs, true)
}

// SourceIsTarget appends "ip6 hoplimit 255 icmpv6 type nd-neighbor-advert ip6 saddr set @th,64,128": an advertisement
// gets the address that it is about as its source. Receivers ignore those with another hop limit (RFC 4861, 7.1.2).
// Without it, nft(8) would load "ether type" from its own listing, and so miss frames with a tag of VLAN 0.
func (r *Rule) SourceIsTarget() *Rule {
	const hopLimit, advertisement, target, size = 7, 136, 8, 16
	saddr, _ := AddressField(true, false)
	return r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, hopLimit, 1, reg(0)).cmp(unix.NFT_CMP_EQ, []byte{255}).
		Proto(false, unix.IPPROTO_ICMPV6).
		payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1, reg(0)).cmp(unix.NFT_CMP_EQ, []byte{advertisement}).
		payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, target, size, reg(0)).
		expr("payload", func() {
			r.code.U32(unix.NFTA_PAYLOAD_SREG, reg(0))
			r.code.U32(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
			r.code.U32(unix.NFTA_PAYLOAD_OFFSET, saddr)
			r.code.U32(unix.NFTA_PAYLOAD_LEN, size)
			r.code.U32(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
		})
}

// Fragment appends "ip frag-off & 0x3fff != 0", or "exthdr frag exists", without the family.
func (r *Rule) Fragment(v6 bool) *Rule {
	if !v6 {
		return r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 6, 2, reg(0)).bitwise(Key(uint16(0x3fff))).
			cmp(unix.NFT_CMP_NEQ, Key(uint16(0)))
	}
	r.expr("exthdr", func() {
		r.code.U32(unix.NFTA_EXTHDR_DREG, reg(0))
		r.code.Attr(unix.NFTA_EXTHDR_TYPE, unix.IPPROTO_FRAGMENT)
		r.code.U32(unix.NFTA_EXTHDR_OFFSET, 0)
		r.code.U32(unix.NFTA_EXTHDR_LEN, 1)
		r.code.U32(unix.NFTA_EXTHDR_FLAGS, unix.NFT_EXTHDR_F_PRESENT)
	})
	return r.cmp(unix.NFT_CMP_EQ, []byte{1})
}

// EndBehind appends "ct original ip saddr & mask . iifname @set", or "ct reply", of an end of the packet's connection,
// without the family.
func (r *Rule) EndBehind(reply bool, set *Set) *Rule {
	key, size := uint32(unix.NFT_CT_SRC_IP), uint32(4)
	if set.v6() {
		key, size = unix.NFT_CT_SRC_IP6, 16
	}
	direction := byte(ctOriginal)
	if reply {
		direction = ctReply
	}
	r.expr("ct", func() {
		r.code.U32(unix.NFTA_CT_DREG, reg(0))
		r.code.U32(unix.NFTA_CT_KEY, key)
		r.code.Attr(unix.NFTA_CT_DIRECTION, direction)
	})
	if set.Bits < int(8*size) {
		r.bitwise(prefixMask(size, set.Bits))
	}
	return r.meta(unix.NFT_META_IIFNAME, reg(int(size/4))).lookup(set, false)
}

// From appends "ip saddr @set".
func (r *Rule) From(set *Set) *Rule { return r.address(false, set) }

// Toward appends "ip daddr @set".
func (r *Rule) Toward(set *Set) *Rule { return r.address(true, set) }

func (r *Rule) address(dst bool, set *Set) *Rule {
	offset, size := AddressField(set.v6(), dst)
	return r.Family(set.v6()).payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg(0)).lookup(set, false)
}

// To appends "ip daddr . meta l4proto . th dport @set".
func (r *Rule) To(set *Set) *Rule { return r.keyed(set) }

// PublishedTo appends "ct direction original ip daddr . meta l4proto . ct original proto-dst @set": where a translated
// packet goes, and by which port it was asked for.
func (r *Rule) PublishedTo(set *Set) *Rule {
	offset, size := AddressField(set.v6(), true)
	words := int(size / 4)
	return r.direction(ctOriginal).Family(set.v6()).
		payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg(0)).meta(unix.NFT_META_L4PROTO, reg(words)).
		ct(unix.NFT_CT_PROTO_DST, true, reg(words+1)).lookup(set, false)
}

// Pair appends "ip saddr . ip daddr @set".
func (r *Rule) Pair(set *Set) *Rule {
	src, size := AddressField(set.v6(), false)
	dst, _ := AddressField(set.v6(), true)
	return r.Family(set.v6()).payload(unix.NFT_PAYLOAD_NETWORK_HEADER, src, size, reg(0)).
		payload(unix.NFT_PAYLOAD_NETWORK_HEADER, dst, size, reg(int(size/4))).lookup(set, false)
}

// DNAT appends "dnat ip to ip daddr . meta l4proto . th dport map @set", without the daddr if the keys have none.
// Where set has no ports, the packet keeps its own.
func (r *Rule) DNAT(set *Set) *Rule {
	port := uint32(0)
	if _, size := AddressField(set.v6(), true); len(set.Data) > 1 {
		port = reg(int(size / 4))
	}
	return r.keyed(set).nat(unix.NFT_NAT_DNAT, set.v6(), port)
}

// Masquerade appends "masquerade".
func (r *Rule) Masquerade() *Rule { return r.expr("masq", func() {}) }

// SNAT appends "snat ip to a", or "snat ip6 to a".
func (r *Rule) SNAT(a netip.Addr) *Rule {
	return r.load(reg(0), a.AsSlice()).nat(unix.NFT_NAT_SNAT, a.Is6(), 0)
}

// FromGuarded appends "iifname @links iifname . ether saddr != @pairs".
func (r *Rule) FromGuarded(links, pairs *Set) *Rule {
	return r.meta(unix.NFT_META_IIFNAME, reg(0)).lookup(links, false).
		meta(unix.NFT_META_IIFNAME, reg(0)).payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 6, reg(4)).lookup(pairs, true)
}

// Accept appends "accept", which ends this base chain for the packet. Later base chains still see the packet.
func (r *Rule) Accept() *Rule { return r.decide(Accept, "") }

// Jump appends "jump chain".
func (r *Rule) Jump(chain string) *Rule {
	r.jumps = chain
	return r.decide(unix.NFT_JUMP, chain)
}

// Return appends "return", which goes back to the chain that jumped here.
func (r *Rule) Return() *Rule { return r.decide(unix.NFT_RETURN, "") }

// Drop appends "drop".
func (r *Rule) Drop() *Rule { return r.decide(0, "") } // NF_DROP
