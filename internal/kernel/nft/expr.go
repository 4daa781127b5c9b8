package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

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
	fibSaddr          = 1 << 0
	fibDaddr          = 1 << 1
	fibIif            = 1 << 3
	fibPresent        = 1 << 5
	addrTypeLocal     = 2
	ctStatusExpected  = 1 << 0
	ctStatusDNAT      = 1 << 5
	ctEstablished     = 1 << 1
	ctRelated         = 1 << 2
	ctNew             = 1 << 3
	ctStatusConfirmed = 1 << 3
	metaIifkind       = 26 // NFT_META_IIFKIND
)

func (r *Rule) expr(name string, fn func()) *Rule {
	r.code.Nest(unix.NFTA_LIST_ELEM, func() {
		r.code.Str(unix.NFTA_EXPR_NAME, name)
		r.code.Nest(unix.NFTA_EXPR_DATA, fn)
	})
	return r
}

func putValue(b *netlink.Buffer, typ uint16, v []byte) {
	b.Nest(typ, func() { b.Attr(unix.NFTA_DATA_VALUE, v...) })
}

func putVerdict(b *netlink.Buffer, typ uint16, code int32, chain string) {
	b.Nest(typ, func() {
		b.Nest(unix.NFTA_DATA_VERDICT, func() {
			b.U32(unix.NFTA_VERDICT_CODE, uint32(code))
			if chain != "" {
				b.Str(unix.NFTA_VERDICT_CHAIN, chain)
			}
		})
	})
}

func (r *Rule) meta(key, dreg uint32) *Rule {
	return r.expr("meta", func() {
		r.code.U32(unix.NFTA_META_DREG, dreg)
		r.code.U32(unix.NFTA_META_KEY, key)
	})
}

func (r *Rule) payload(base, offset, size, dreg uint32) *Rule {
	return r.expr("payload", func() {
		r.code.U32(unix.NFTA_PAYLOAD_DREG, dreg)
		r.code.U32(unix.NFTA_PAYLOAD_BASE, base)
		r.code.U32(unix.NFTA_PAYLOAD_OFFSET, offset)
		r.code.U32(unix.NFTA_PAYLOAD_LEN, size)
	})
}

func (r *Rule) cmp(op uint32, v []byte) *Rule {
	return r.expr("cmp", func() {
		r.code.U32(unix.NFTA_CMP_SREG, reg(0))
		r.code.U32(unix.NFTA_CMP_OP, op)
		putValue(&r.code, unix.NFTA_CMP_DATA, v)
	})
}

func (r *Rule) bitwise(mask []byte) *Rule { return r.maskAt(0, mask) }

func (r *Rule) maskAt(word int, mask []byte) *Rule {
	return r.expr("bitwise", func() {
		r.code.U32(unix.NFTA_BITWISE_SREG, reg(word))
		r.code.U32(unix.NFTA_BITWISE_DREG, reg(word))
		r.code.U32(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		putValue(&r.code, unix.NFTA_BITWISE_MASK, mask)
		putValue(&r.code, unix.NFTA_BITWISE_XOR, make([]byte, len(mask)))
	})
}

// lookup looks register 1 up in a set; the result of a map goes over the key.
func (r *Rule) lookup(set *Set, not bool) *Rule {
	return r.expr("lookup", func() {
		r.code.Str(unix.NFTA_LOOKUP_SET, set.Name)
		r.code.U32(unix.NFTA_LOOKUP_SREG, reg(0))
		if len(set.Data) > 0 {
			r.code.U32(unix.NFTA_LOOKUP_DREG, reg(0))
		}
		if not {
			r.code.U32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
	})
}

func op(not bool) uint32 {
	if not {
		return unix.NFT_CMP_NEQ
	}
	return unix.NFT_CMP_EQ
}

// AddressField returns the offset and size, in bytes, of an address in the IP header.
func AddressField(v6, dst bool) (offset, size uint32) {
	offset, size = 12, 4
	if v6 {
		offset, size = 8, 16
	}
	if dst {
		offset += size
	}
	return offset, size
}

func (r *Rule) inPrefix(dst bool, p netip.Prefix) *Rule {
	return r.Family(p.Addr().Is6()).Prefix(dst, false, p)
}

func prefixMask(size uint32, bits int) []byte {
	mask := make([]byte, size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// subnet loads an address without host bits, and returns the register's word behind it.
func (r *Rule) subnet(word int, side Side, set *Set) (next int) {
	offset, size := AddressField(set.v6(), bool(side))
	r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg(word))
	if set.Bits < int(8*size) {
		r.maskAt(word, prefixMask(size, set.Bits))
	}
	return word + int(size/4)
}

func (r *Rule) local(not bool) *Rule {
	return r.expr("fib", func() {
		r.code.U32(unix.NFTA_FIB_DREG, reg(0))
		r.code.U32(unix.NFTA_FIB_RESULT, fibResultAddrType)
		r.code.U32(unix.NFTA_FIB_FLAGS, fibDaddr)
	}).cmp(op(not), binary.NativeEndian.AppendUint32(nil, addrTypeLocal))
}

func (r *Rule) status(bit, op uint32) *Rule {
	return r.ct(unix.NFT_CT_STATUS, false, reg(0)).bitwise(binary.NativeEndian.AppendUint32(nil, bit)).cmp(op,
		make([]byte, 4))
}

func (r *Rule) inState(bits uint32) *Rule {
	return r.ct(unix.NFT_CT_STATE, false, reg(0)).bitwise(binary.NativeEndian.AppendUint32(nil, bits)).
		cmp(unix.NFT_CMP_NEQ, make([]byte, 4))
}

// label has one bit set: the one of that number where bytes are in little-endian order, else another one.
func label(bit int) []byte {
	b := make([]byte, 16)
	b[bit/8] = 1 << (bit % 8)
	return b
}

// keyed appends "[ip daddr .] meta l4proto . th dport @set", by the keys of set.
func (r *Rule) keyed(set *Set) *Rule {
	r.Family(set.v6())
	word := 0
	if len(set.Key) > 2 {
		offset, size := AddressField(set.v6(), true)
		r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg(0))
		word = int(size / 4)
	}
	return r.meta(unix.NFT_META_L4PROTO, reg(word)).payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, reg(word+1)).
		lookup(set, false)
}

// The directions of a connection: IP_CT_DIR_ORIGINAL and IP_CT_DIR_REPLY.
const (
	ctOriginal = 0
	ctReply    = 1
)

func (r *Rule) direction(d byte) *Rule {
	return r.ct(unix.NFT_CT_DIRECTION, false, reg(0)).cmp(unix.NFT_CMP_EQ, []byte{d})
}

// ct loads what conntrack knows of a packet's flow; of its first direction where original is true.
func (r *Rule) ct(key uint32, original bool, dreg uint32) *Rule {
	return r.expr("ct", func() {
		r.code.U32(unix.NFTA_CT_DREG, dreg)
		r.code.U32(unix.NFTA_CT_KEY, key)
		if original {
			r.code.Attr(unix.NFTA_CT_DIRECTION, ctOriginal)
		}
	})
}

// nat translates to the address in register 1, and to the port in another one where it is not 0.
func (r *Rule) nat(typ uint32, v6 bool, port uint32) *Rule {
	return r.expr("nat", func() {
		r.code.U32(unix.NFTA_NAT_TYPE, typ)
		r.code.U32(unix.NFTA_NAT_FAMILY, uint32(Family(v6)))
		r.code.U32(unix.NFTA_NAT_REG_ADDR_MIN, reg(0))
		if port != 0 {
			r.code.U32(unix.NFTA_NAT_REG_PROTO_MIN, port)
		}
	})
}

// load puts a constant into a register.
func (r *Rule) load(dreg uint32, v []byte) *Rule {
	return r.expr("immediate", func() {
		r.code.U32(unix.NFTA_IMMEDIATE_DREG, dreg)
		putValue(&r.code, unix.NFTA_IMMEDIATE_DATA, v)
	})
}

func (r *Rule) decide(code int32, chain string) *Rule {
	return r.expr("immediate", func() {
		r.code.U32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		putVerdict(&r.code, unix.NFTA_IMMEDIATE_DATA, code, chain)
	})
}
