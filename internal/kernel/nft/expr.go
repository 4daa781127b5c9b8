package nft

import (
	"encoding/binary"

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

// Numbers that x/sys lacks names for, of fib and of conntrack.
const (
	fibResultAddrType = 3 // the type of an address
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

// The directions of a connection: IP_CT_DIR_ORIGINAL and IP_CT_DIR_REPLY.
const (
	ctOriginal = 0
	ctReply    = 1
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

// cmp compares register 1 with a value.
func (r *Rule) cmp(not bool, v []byte) *Rule {
	return r.expr("cmp", func() {
		r.code.U32(unix.NFTA_CMP_SREG, reg(0))
		r.code.U32(unix.NFTA_CMP_OP, op(not))
		putValue(&r.code, unix.NFTA_CMP_DATA, v)
	})
}

// number is a number of the kernel's own in a register.
func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func op(not bool) uint32 {
	if not {
		return unix.NFT_CMP_NEQ
	}
	return unix.NFT_CMP_EQ
}

// bitwise makes a register & mask ^ xor of itself.
func (r *Rule) bitwise(register uint32, mask, xor []byte) *Rule {
	return r.expr("bitwise", func() {
		r.code.U32(unix.NFTA_BITWISE_SREG, register)
		r.code.U32(unix.NFTA_BITWISE_DREG, register)
		r.code.U32(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		putValue(&r.code, unix.NFTA_BITWISE_MASK, mask)
		putValue(&r.code, unix.NFTA_BITWISE_XOR, xor)
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

// fib asks the routes about the packet.
func (r *Rule) fib(result, flags uint32) *Rule {
	return r.expr("fib", func() {
		r.code.U32(unix.NFTA_FIB_DREG, reg(0))
		r.code.U32(unix.NFTA_FIB_RESULT, result)
		r.code.U32(unix.NFTA_FIB_FLAGS, flags)
	})
}

// set writes register 1 into what the kernel keeps with the packet.
func (r *Rule) set(key uint32) *Rule {
	return r.expr("meta", func() {
		r.code.U32(unix.NFTA_META_SREG, reg(0))
		r.code.U32(unix.NFTA_META_KEY, key)
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

// constant puts a value into a register.
func (r *Rule) constant(register uint32, v []byte) *Rule {
	return r.expr("immediate", func() {
		r.code.U32(unix.NFTA_IMMEDIATE_DREG, register)
		putValue(&r.code, unix.NFTA_IMMEDIATE_DATA, v)
	})
}

func (r *Rule) decide(code int32, chain string) *Rule {
	r.jumps = chain
	return r.expr("immediate", func() {
		r.code.U32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		r.code.Nest(unix.NFTA_IMMEDIATE_DATA, func() {
			r.code.Nest(unix.NFTA_DATA_VERDICT, func() {
				r.code.U32(unix.NFTA_VERDICT_CODE, uint32(code))
				r.code.OptStr(unix.NFTA_VERDICT_CHAIN, chain)
			})
		})
	})
}
