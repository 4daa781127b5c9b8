package kernel

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// An NFTRule is a rule while it is written: expressions that work on registers, in the order and with the
// registers that nft(8) itself would use, for it prints a rule only as well as it can guess what was meant.
type NFTRule struct {
	comment string
	plain   bool // the comment is no more than what it was made with
	jumps   string
	buffer  // the expressions
}

// NewNFTRule is a rule with a comment that says what it is for.
func NewNFTRule(comment string) *NFTRule {
	return &NFTRule{comment: comment, buffer: make(buffer, 0, 240)} // which most rules have room in
}

// Comment is what the kernel keeps: the words, and a hash of the expressions, so that a rule that was
// changed, or that another version made, is not taken for this one.
func (r *NFTRule) Comment() string {
	if r.plain {
		return r.comment
	}
	h := sha256.Sum256(r.buffer)
	return r.comment + " " + hex.EncodeToString(h[:4])
}

// Clone is a copy to write on.
func (r *NFTRule) Clone() *NFTRule {
	c := *r
	c.buffer = slices.Clone(r.buffer)
	return &c
}

// Code is a hash of the expressions, to tell two rules apart.
func (r *NFTRule) Code() string {
	h := sha256.Sum256(r.buffer)
	return hex.EncodeToString(h[:6])
}

// Registers: 1 to 4 are 16 bytes each; reg is the one at the nth word of 4 bytes from the first one on.
func reg(word int) uint32 {
	if word%4 == 0 {
		return uint32(unix.NFT_REG_1 + word/4)
	}
	return uint32(unix.NFT_REG32_00 + word)
}

// Attributes of fib that x/sys lacks a name for: the result is the type of the address, of the daddr.
const (
	fibResultAddrType = 3
	fibDaddr          = 1 << 1
	addrTypeLocal     = 2
	ctStatusExpected  = 1 << 0
	ctStatusDNAT      = 1 << 5
	ctEstablished     = 1 << 1
	ctRelated         = 1 << 2
	ctNew             = 1 << 3
	ctStatusConfirmed = 1 << 3
	metaIifkind       = 26 // NFT_META_IIFKIND
)

func (r *NFTRule) expr(name string, fn func()) *NFTRule {
	r.nest(unix.NFTA_LIST_ELEM, func() {
		r.str(unix.NFTA_EXPR_NAME, name)
		r.nest(unix.NFTA_EXPR_DATA, fn)
	})
	return r
}

func (b *buffer) value(typ uint16, v []byte) {
	b.nest(typ, func() { b.attr(unix.NFTA_DATA_VALUE, v...) })
}

func (b *buffer) verdict(typ uint16, code int32, chain string) {
	b.nest(typ, func() {
		b.nest(unix.NFTA_DATA_VERDICT, func() {
			b.u32(unix.NFTA_VERDICT_CODE, uint32(code))
			if chain != "" {
				b.str(unix.NFTA_VERDICT_CHAIN, chain)
			}
		})
	})
}

func (r *NFTRule) meta(key, dreg uint32) *NFTRule {
	return r.expr("meta", func() {
		r.u32(unix.NFTA_META_DREG, dreg)
		r.u32(unix.NFTA_META_KEY, key)
	})
}

func (r *NFTRule) payload(base, offset, size, dreg uint32) *NFTRule {
	return r.expr("payload", func() {
		r.u32(unix.NFTA_PAYLOAD_DREG, dreg)
		r.u32(unix.NFTA_PAYLOAD_BASE, base)
		r.u32(unix.NFTA_PAYLOAD_OFFSET, offset)
		r.u32(unix.NFTA_PAYLOAD_LEN, size)
	})
}

func (r *NFTRule) cmp(op uint32, v []byte) *NFTRule {
	return r.expr("cmp", func() {
		r.u32(unix.NFTA_CMP_SREG, reg(0))
		r.u32(unix.NFTA_CMP_OP, op)
		r.value(unix.NFTA_CMP_DATA, v)
	})
}

func (r *NFTRule) bitwise(mask []byte) *NFTRule { return r.maskAt(0, mask) }

func (r *NFTRule) maskAt(word int, mask []byte) *NFTRule {
	return r.expr("bitwise", func() {
		r.u32(unix.NFTA_BITWISE_SREG, reg(word))
		r.u32(unix.NFTA_BITWISE_DREG, reg(word))
		r.u32(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		r.value(unix.NFTA_BITWISE_MASK, mask)
		r.value(unix.NFTA_BITWISE_XOR, make([]byte, len(mask)))
	})
}

// lookup looks register 1 up in a set; the result of a map goes over the key.
func (r *NFTRule) lookup(set *NFTSet, not bool) *NFTRule {
	return r.expr("lookup", func() {
		r.str(unix.NFTA_LOOKUP_SET, set.Name)
		r.u32(unix.NFTA_LOOKUP_SREG, reg(0))
		if len(set.Data) > 0 {
			r.u32(unix.NFTA_LOOKUP_DREG, reg(0))
		}
		if not {
			r.u32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
	})
}

func op(not bool) uint32 {
	if not {
		return unix.NFT_CMP_NEQ
	}
	return unix.NFT_CMP_EQ
}

// Family is "meta nfproto ipv4" or "meta nfproto ipv6".
func (r *NFTRule) Family(v6 bool) *NFTRule {
	return r.meta(unix.NFT_META_NFPROTO, reg(0)).cmp(unix.NFT_CMP_EQ, []byte{NFProto(v6)})
}

// where an address stands in its header
func address(v6, dst bool) (offset, size uint32) {
	offset, size = 12, 4
	if v6 {
		offset, size = 8, 16
	}
	if dst {
		offset += size
	}
	return offset, size
}

// Prefix is "ip saddr p", "ip6 daddr != p" and so on, without the family.
func (r *NFTRule) Prefix(dst, not bool, p netip.Prefix) *NFTRule {
	offset, size := address(p.Addr().Is6(), dst)
	r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg(0))
	if p.Bits() < p.Addr().BitLen() {
		r.bitwise(prefixMask(size, p.Bits()))
	}
	return r.cmp(op(not), p.Masked().Addr().AsSlice())
}

func prefixMask(size uint32, bits int) []byte {
	mask := make([]byte, size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// A Side is the source of a packet, with the link that it comes in by, or its destination, with the link that it leaves
// by.
type Side bool

// The sides of a packet.
const (
	Src Side = false
	Dst Side = true
)

// subnet loads an address without host bits, and returns the register's word behind it.
func (r *NFTRule) subnet(word int, v6 bool, side Side, bits int) (next int) {
	offset, size := address(v6, bool(side))
	r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg(word))
	if bits < int(8*size) {
		r.maskAt(word, prefixMask(size, bits))
	}
	return word + int(size/4)
}

// SubnetBy is "ip saddr & mask . iifname @set", of either side of the packet for each, without the family.
func (r *NFTRule) SubnetBy(v6 bool, bits int, side, link Side, not bool, set *NFTSet) *NFTRule {
	key := uint32(unix.NFT_META_IIFNAME)
	if link == Dst {
		key = unix.NFT_META_OIFNAME
	}
	next := r.subnet(0, v6, side, bits)
	return r.meta(key, reg(next)).lookup(set, not)
}

// Subnets is "ip saddr & mask . ip daddr & mask @set", of either side of the packet for each, without the family.
func (r *NFTRule) Subnets(v6 bool, bits int, a, b Side, not bool, set *NFTSet) *NFTRule {
	r.subnet(r.subnet(0, v6, a, bits), v6, b, bits)
	return r.lookup(set, not)
}

// Iifname is `iifname "name"`; a name that ends in * stands for all that begin so.
func (r *NFTRule) Iifname(not bool, name string) *NFTRule {
	v := append([]byte(name), make([]byte, 16)...)[:16]
	if n := len(name); n > 0 && name[n-1] == '*' {
		v = []byte(name[:n-1])
	}
	return r.meta(unix.NFT_META_IIFNAME, reg(0)).cmp(op(not), v)
}

// Iifkind is `iifkind "kind"`.
func (r *NFTRule) Iifkind(kind string) *NFTRule {
	return r.meta(metaIifkind, reg(0)).cmp(unix.NFT_CMP_EQ, append([]byte(kind), make([]byte, 16)...)[:16])
}

// NotLo is `iif != "lo"`: lo has the index 1 in every namespace.
func (r *NFTRule) NotLo() *NFTRule {
	return r.meta(unix.NFT_META_IIF, reg(0)).cmp(unix.NFT_CMP_NEQ, binary.NativeEndian.AppendUint32(nil, 1))
}

// Mark is "meta mark & mask value".
func (r *NFTRule) Mark(not bool, value, mask uint32) *NFTRule {
	r.meta(unix.NFT_META_MARK, reg(0))
	if mask != 0xffffffff {
		r.bitwise(binary.NativeEndian.AppendUint32(nil, mask))
	}
	return r.cmp(op(not), binary.NativeEndian.AppendUint32(nil, value))
}

// Proto is "meta l4proto proto".
func (r *NFTRule) Proto(not bool, proto byte) *NFTRule {
	return r.meta(unix.NFT_META_L4PROTO, reg(0)).cmp(op(not), []byte{proto})
}

// Port is "th sport from-to", or dport, of whatever has ports.
func (r *NFTRule) Port(dst, not bool, from, to uint16) *NFTRule {
	offset := uint32(0)
	if dst {
		offset = 2
	}
	r.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, 2, reg(0))
	if from == to {
		return r.cmp(op(not), NFTKey(from))
	}
	return r.expr("range", func() {
		r.u32(unix.NFTA_RANGE_SREG, reg(0))
		r.u32(unix.NFTA_RANGE_OP, op(not)) // NFT_RANGE_EQ and _NEQ have the numbers of NFT_CMP_…
		r.value(unix.NFTA_RANGE_FROM_DATA, NFTKey(from))
		r.value(unix.NFTA_RANGE_TO_DATA, NFTKey(to))
	})
}

// ToLocal is "fib daddr type local".
func (r *NFTRule) ToLocal() *NFTRule { return r.local(false) }

// NotToLocal is "fib daddr type != local".
func (r *NFTRule) NotToLocal() *NFTRule { return r.local(true) }

func (r *NFTRule) local(not bool) *NFTRule {
	return r.expr("fib", func() {
		r.u32(unix.NFTA_FIB_DREG, reg(0))
		r.u32(unix.NFTA_FIB_RESULT, fibResultAddrType)
		r.u32(unix.NFTA_FIB_FLAGS, fibDaddr)
	}).cmp(op(not), binary.NativeEndian.AppendUint32(nil, addrTypeLocal))
}

// Translated is "ct status dnat".
func (r *NFTRule) Translated() *NFTRule { return r.status(ctStatusDNAT, unix.NFT_CMP_NEQ) }

// Unconfirmed is "ct status ! confirmed": of a connection that conntrack has no entry of yet.
func (r *NFTRule) Unconfirmed() *NFTRule { return r.status(ctStatusConfirmed, unix.NFT_CMP_EQ) }

func (r *NFTRule) status(bit, op uint32) *NFTRule {
	return r.ct(unix.NFT_CT_STATUS, false, reg(0)).bitwise(binary.NativeEndian.AppendUint32(nil, bit)).cmp(op,
		make([]byte, 4))
}

// Confirmed is "ct status confirmed".
func (r *NFTRule) Confirmed() *NFTRule { return r.status(ctStatusConfirmed, unix.NFT_CMP_NEQ) }

// Expected is "ct status expected": of a connection that a helper of another one has announced.
func (r *NFTRule) Expected() *NFTRule { return r.status(ctStatusExpected, unix.NFT_CMP_NEQ) }

// Reply is "ct state established ct direction reply".
func (r *NFTRule) Reply() *NFTRule { return r.inState(ctEstablished).direction(ctReply) }

// Related is "ct state related".
func (r *NFTRule) Related() *NFTRule { return r.inState(ctRelated) }

// New is "ct state new".
func (r *NFTRule) New() *NFTRule { return r.inState(ctNew) }

func (r *NFTRule) inState(bits uint32) *NFTRule {
	return r.ct(unix.NFT_CT_STATE, false, reg(0)).bitwise(binary.NativeEndian.AppendUint32(nil, bits)).
		cmp(unix.NFT_CMP_NEQ, make([]byte, 4))
}

// In is "iifname @set".
func (r *NFTRule) In(set *NFTSet) *NFTRule {
	return r.meta(unix.NFT_META_IIFNAME, reg(0)).lookup(set, false)
}

// Out is "oifname @set".
func (r *NFTRule) Out(set *NFTSet) *NFTRule {
	return r.meta(unix.NFT_META_OIFNAME, reg(0)).lookup(set, false)
}

// Between is "iifname . oifname @set".
func (r *NFTRule) Between(set *NFTSet) *NFTRule {
	return r.meta(unix.NFT_META_IIFNAME, reg(0)).meta(unix.NFT_META_OIFNAME, reg(4)).lookup(set, false)
}

// SetMark is "meta mark set meta mark | bits".
func (r *NFTRule) SetMark(bits uint32) *NFTRule {
	r.meta(unix.NFT_META_MARK, reg(0)).expr("bitwise", func() {
		r.u32(unix.NFTA_BITWISE_SREG, reg(0))
		r.u32(unix.NFTA_BITWISE_DREG, reg(0))
		r.u32(unix.NFTA_BITWISE_LEN, 4)
		r.value(unix.NFTA_BITWISE_MASK, binary.NativeEndian.AppendUint32(nil, ^bits))
		r.value(unix.NFTA_BITWISE_XOR, binary.NativeEndian.AppendUint32(nil, bits))
	})
	return r.expr("meta", func() {
		r.u32(unix.NFTA_META_SREG, reg(0))
		r.u32(unix.NFTA_META_KEY, unix.NFT_META_MARK)
	})
}

// Label is "ct label bit", or "ct label ! bit". There are 128.
func (r *NFTRule) Label(not bool, bit int) *NFTRule {
	return r.ct(unix.NFT_CT_LABELS, false, reg(0)).bitwise(label(bit)).cmp(op(!not), make([]byte, 16))
}

// SetLabel is "ct label set bit". Others stay.
func (r *NFTRule) SetLabel(bit int) *NFTRule {
	return r.expr("immediate", func() {
		r.u32(unix.NFTA_IMMEDIATE_DREG, reg(0))
		r.value(unix.NFTA_IMMEDIATE_DATA, label(bit))
	}).expr("ct", func() {
		r.u32(unix.NFTA_CT_KEY, unix.NFT_CT_LABELS)
		r.u32(unix.NFTA_CT_SREG, reg(0))
	})
}

// label has one bit set: the one of that number where bytes are in little-endian order, else another one.
func label(bit int) []byte {
	b := make([]byte, 16)
	b[bit/8] = 1 << (bit % 8)
	return b
}

// From is "ip saddr @set".
func (r *NFTRule) From(v6 bool, set *NFTSet) *NFTRule {
	offset, size := address(v6, false)
	return r.Family(v6).payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg(0)).lookup(set, false)
}

// keyed loads [ip daddr .] meta l4proto . th dport into register 1 and on.
func (r *NFTRule) keyed(v6, daddr bool) *NFTRule {
	word := 0
	if daddr {
		offset, size := address(v6, true)
		r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg(0))
		word = int(size / 4)
	}
	return r.meta(unix.NFT_META_L4PROTO, reg(word)).payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, reg(word+1))
}

// To is "ip daddr . meta l4proto . th dport @set".
func (r *NFTRule) To(v6 bool, set *NFTSet) *NFTRule {
	return r.Family(v6).keyed(v6, true).lookup(set, false)
}

// PublishedTo is "ct direction original ip daddr . meta l4proto . ct original proto-dst @set": where a translated
// packet goes, and by which port it was asked for.
func (r *NFTRule) PublishedTo(v6 bool, set *NFTSet) *NFTRule {
	offset, size := address(v6, true)
	words := int(size / 4)
	return r.direction(ctOriginal).Family(v6).
		payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg(0)).meta(unix.NFT_META_L4PROTO, reg(words)).
		ct(unix.NFT_CT_PROTO_DST, true, reg(words+1)).lookup(set, false)
}

// The directions of a connection: IP_CT_DIR_ORIGINAL and IP_CT_DIR_REPLY.
const (
	ctOriginal = 0
	ctReply    = 1
)

func (r *NFTRule) direction(d byte) *NFTRule {
	return r.ct(unix.NFT_CT_DIRECTION, false, reg(0)).cmp(unix.NFT_CMP_EQ, []byte{d})
}

// ct loads what conntrack knows of a packet's flow; of its first direction where original is true.
func (r *NFTRule) ct(key uint32, original bool, dreg uint32) *NFTRule {
	return r.expr("ct", func() {
		r.u32(unix.NFTA_CT_DREG, dreg)
		r.u32(unix.NFTA_CT_KEY, key)
		if original {
			r.attr(unix.NFTA_CT_DIRECTION, ctOriginal)
		}
	})
}

// Pair is "ip saddr . ip daddr @set".
func (r *NFTRule) Pair(v6 bool, set *NFTSet) *NFTRule {
	src, size := address(v6, false)
	dst, _ := address(v6, true)
	return r.Family(v6).payload(unix.NFT_PAYLOAD_NETWORK_HEADER, src, size, reg(0)).
		payload(unix.NFT_PAYLOAD_NETWORK_HEADER, dst, size, reg(int(size/4))).lookup(set, false)
}

// DNAT is "dnat ip to ip daddr . meta l4proto . th dport map @set", without the daddr where any is true. Where
// set has no ports, the packet keeps its own.
func (r *NFTRule) DNAT(v6, any bool, set *NFTSet) *NFTRule {
	port := uint32(0)
	if _, size := address(v6, true); len(set.Data) > 1 {
		port = reg(int(size / 4))
	}
	return r.Family(v6).keyed(v6, !any).lookup(set, false).nat(unix.NFT_NAT_DNAT, v6, port)
}

// nat translates to the address in register 1, and to the port in another one where it is not 0.
func (r *NFTRule) nat(typ uint32, v6 bool, port uint32) *NFTRule {
	return r.expr("nat", func() {
		r.u32(unix.NFTA_NAT_TYPE, typ)
		r.u32(unix.NFTA_NAT_FAMILY, uint32(NFProto(v6)))
		r.u32(unix.NFTA_NAT_REG_ADDR_MIN, reg(0))
		if port != 0 {
			r.u32(unix.NFTA_NAT_REG_PROTO_MIN, port)
		}
	})
}

// load puts a constant into a register.
func (r *NFTRule) load(dreg uint32, v []byte) *NFTRule {
	return r.expr("immediate", func() {
		r.u32(unix.NFTA_IMMEDIATE_DREG, dreg)
		r.value(unix.NFTA_IMMEDIATE_DATA, v)
	})
}

// Masquerade is "masquerade".
func (r *NFTRule) Masquerade() *NFTRule { return r.expr("masq", func() {}) }

// SNAT is "snat ip to a", or "snat ip6 to a".
func (r *NFTRule) SNAT(a netip.Addr) *NFTRule {
	return r.load(reg(0), a.AsSlice()).nat(unix.NFT_NAT_SNAT, a.Is6(), 0)
}

// FromGuarded is "iifname @links iifname . ether saddr != @pairs".
func (r *NFTRule) FromGuarded(links, pairs *NFTSet) *NFTRule {
	return r.meta(unix.NFT_META_IIFNAME, reg(0)).lookup(links, false).
		meta(unix.NFT_META_IIFNAME, reg(0)).payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 6, reg(4)).lookup(pairs, true)
}

// Accept ends this base chain for the packet; others still see it.
func (r *NFTRule) Accept() *NFTRule { return r.decide(nfAccept, "") }

// Jump, Return and Drop end a rule.
func (r *NFTRule) Jump(chain string) *NFTRule {
	r.jumps = chain
	return r.decide(unix.NFT_JUMP, chain)
}

// Return goes back to the chain that jumped here.
func (r *NFTRule) Return() *NFTRule { return r.decide(unix.NFT_RETURN, "") }

// Drop drops the packet.
func (r *NFTRule) Drop() *NFTRule { return r.decide(0, "") } // NF_DROP

func (r *NFTRule) decide(code int32, chain string) *NFTRule {
	return r.expr("immediate", func() {
		r.u32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		r.verdict(unix.NFTA_IMMEDIATE_DATA, code, chain)
	})
}
