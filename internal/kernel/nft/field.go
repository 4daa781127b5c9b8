package nft

import (
	"encoding/binary"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Field is what a rule can compare or look up: a part of a packet, or what the kernel keeps with one. Most rules need
// only those that nft(8) has words for, and those have methods of Rule.
type Field struct {
	from            source
	base, offset    uint32 // of a part of a packet
	key             uint32 // of what the kernel keeps
	size            uint32 // bytes
	isMasked        bool
	mask            [16]byte // an array, so that no field is on the heap
	direction       []byte   // of a connection; nil is that of the packet
	proto, template uint32   // numbers of nft(8) for the field; none of what it has no word for
}

// A source is where the kernel has a field from.
type source int

const (
	fromPacket source = iota
	fromMeta
	fromConntrack
)

// AddressOf is the source or destination address in the IP header.
func AddressOf(v6, dst bool) Field {
	offset, size := AddressField(v6, dst)
	f := network(offset, size)
	f.proto, f.template = protoIP, templateIPSaddr
	if v6 {
		f.proto, f.template = protoIP6, templateIP6Saddr
	}
	if dst {
		f.template++
	}
	return f
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

// network is what is so many bytes behind the begin of the IP header.
func network(offset, size uint32) Field {
	return Field{base: unix.NFT_PAYLOAD_NETWORK_HEADER, offset: offset, size: size}
}

// Behind is what is so many bytes behind the begin of the transport header. nft(8) calls it "@th,offset,size", in bits.
func Behind(offset, size uint32) Field {
	return Field{base: unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset: offset, size: size}
}

// frame is what is so many bytes behind the begin of the Ethernet header.
func frame(offset, size uint32) Field {
	return Field{base: unix.NFT_PAYLOAD_LL_HEADER, offset: offset, size: size}
}

func meta(key, size uint32) Field { return Field{from: fromMeta, key: key, size: size} }

func iifname() Field { return meta(unix.NFT_META_IIFNAME, 16) }

func oifname() Field { return meta(unix.NFT_META_OIFNAME, 16) }

func l4proto() Field { return meta(unix.NFT_META_L4PROTO, 1) }

// conntrack is what conntrack knows of a packet's flow.
func conntrack(key, size uint32, direction ...byte) Field {
	return Field{from: fromConntrack, key: key, size: size, direction: direction}
}

// prefix is the field of an address without host bits.
func (f Field) prefix(bits int) Field {
	if bits < int(8*f.size) {
		return f.masked(prefixMask(f.size, bits))
	}
	return f
}

func (f Field) masked(mask []byte) Field {
	f.isMasked = true
	copy(f.mask[:], mask)
	return f
}

func prefixMask(size uint32, bits int) []byte {
	mask := make([]byte, size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// load appends what puts fields side by side into the registers, as a set has them in its keys.
func (r *Rule) load(fields ...Field) *Rule {
	word := 0
	for _, f := range fields {
		f.into(r, reg(word))
		word += netlink.Align(int(f.size)) / 4
	}
	return r
}

func (f Field) into(r *Rule, register uint32) {
	var none [16]byte
	switch f.from {
	case fromPacket:
		r.expr("payload", func() {
			r.code.U32(unix.NFTA_PAYLOAD_DREG, register)
			r.code.U32(unix.NFTA_PAYLOAD_BASE, f.base)
			r.code.U32(unix.NFTA_PAYLOAD_OFFSET, f.offset)
			r.code.U32(unix.NFTA_PAYLOAD_LEN, f.size)
		})
	case fromMeta:
		r.expr("meta", func() {
			r.code.U32(unix.NFTA_META_DREG, register)
			r.code.U32(unix.NFTA_META_KEY, f.key)
		})
	case fromConntrack:
		r.expr("ct", func() {
			r.code.U32(unix.NFTA_CT_DREG, register)
			r.code.U32(unix.NFTA_CT_KEY, f.key)
			r.code.OptAttr(unix.NFTA_CT_DIRECTION, f.direction...)
		})
	}
	if f.isMasked {
		r.bitwise(register, f.mask[:f.size], none[:f.size])
	}
}

// Is appends a comparison of a field with a value.
func (r *Rule) Is(f Field, value []byte) *Rule { return r.compare(false, f, value) }

// compare appends "field value" or "field != value".
func (r *Rule) compare(not bool, f Field, value []byte) *Rule {
	return r.load(f).cmp(not, value)
}

// has appends "field bits", where any of the bits is set, or "field ! bits".
func (r *Rule) has(not bool, f Field, bits []byte) *Rule {
	var none [16]byte
	return r.compare(!not, f.masked(bits), none[:len(bits)])
}

// SubnetIn appends "ip saddr & mask @set" or "!= @set", of either side of the packet, without the family. The mask has
// the given length, whatever set says.
func (r *Rule) SubnetIn(bits int, side Side, not bool, set *Set) *Rule {
	return r.FieldsIn(not, set, AddressOf(set.v6(), bool(side)).prefix(bits))
}

// FieldsIn appends "field . field @set", or != @set, without the family. The set has the keys that the fields are.
func (r *Rule) FieldsIn(not bool, set *Set, fields ...Field) *Rule {
	return r.load(fields...).lookup(set, not)
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
