package nft

import (
	"encoding/binary"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Field is a part of a packet. Most rules need only those that nft(8) has words for, and those have methods of Rule.
type Field struct {
	base, offset, size uint32 // bytes
	proto, template    uint32 // numbers of nft(8) for the field; none of what it has no word for
}

// AddressOf is the source or destination address in the IP header.
func AddressOf(v6, dst bool) Field {
	f := Field{base: unix.NFT_PAYLOAD_NETWORK_HEADER, proto: protoIP, template: templateIPSaddr}
	if v6 {
		f.proto, f.template = protoIP6, templateIP6Saddr
	}
	if dst {
		f.template++
	}
	f.offset, f.size = AddressField(v6, dst)
	return f
}

// Behind is what is so many bytes behind the begin of the transport header. nft(8) calls it "@th,offset,size", in bits.
func Behind(offset, size uint32) Field {
	return Field{base: unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset: offset, size: size}
}

// Is appends a comparison of a field with a value.
func (r *Rule) Is(f Field, value []byte) *Rule {
	return r.payload(f.base, f.offset, f.size, reg(0)).cmp(unix.NFT_CMP_EQ, value)
}

// FieldsIn appends "field . field @set", or != @set, without the family. The set has the keys that the fields are.
func (r *Rule) FieldsIn(not bool, set *Set, fields ...Field) *Rule {
	word := 0
	for _, f := range fields {
		r.payload(f.base, f.offset, f.size, reg(word))
		word += netlink.Align(int(f.size)) / 4
	}
	return r.lookup(set, not)
}

// SubnetIn appends "ip saddr & mask @set" or "!= @set", of either side of the packet, without the family. The mask has
// the given length, whatever set says.
func (r *Rule) SubnetIn(bits int, side Side, not bool, set *Set) *Rule {
	masked := *set
	masked.Bits = bits
	r.subnet(0, side, &masked)
	return r.lookup(set, not)
}

// Misrouted appends "fib saddr . iif oif missing": a packet to the source would leave by another link.
func (r *Rule) Misrouted() *Rule {
	return r.expr("fib", func() {
		r.code.U32(unix.NFTA_FIB_DREG, reg(0))
		r.code.U32(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_OIF)
		r.code.U32(unix.NFTA_FIB_FLAGS, fibSaddr|fibIif|fibPresent)
	}).cmp(unix.NFT_CMP_EQ, make([]byte, 4))
}

// Numbers that nft(8) writes into the user data of a set, and reads from there. Those of expressions, protocols and
// fields are in its expression.h, proto.h and proto.c.
const (
	udataByteOrder = 0
	udataTypeOf    = 3

	udataExpr, udataExprData                         = 0, 1
	exprPayload, exprConcat                          = 7, 13
	udataProto, udataField                           = 0, 1
	udataBase, udataOffset, udataSize                = 2, 3, 4
	protoIP, protoIP6                                = 12, 13
	templateIPSaddr, templateIP6Saddr, baseTransport = 11, 8, 3
)

// typeOfFields is the user data of a set whose keys are fields of packets. Without it, nft(8) cannot load a set that it
// has printed, if a part of the key has no type, see Behind. nft(8) has known it since 1.0.3.
func typeOfFields(fields []Field) []byte {
	number := func(b []byte, typ byte, n uint32) []byte {
		return binary.NativeEndian.AppendUint32(append(b, typ, 4), n)
	}
	nest := func(b []byte, typ byte, inner []byte) []byte {
		return append(append(b, typ, byte(len(inner))), inner...)
	}
	var all []byte
	for i, f := range fields {
		var data []byte
		data = number(number(data, udataProto, f.proto), udataField, f.template)
		if f.proto == 0 {
			data = number(number(number(data, udataBase, baseTransport), udataOffset, 8*f.offset), udataSize, 8*f.size)
		}
		field := nest(number(nil, udataExpr, exprPayload), udataExprData, data)
		all = nest(all, byte(i), field)
	}
	concat := nest(number(nil, udataExpr, exprConcat), udataExprData, all)
	return nest(number(nil, udataByteOrder, 0), udataTypeOf, concat)
}
