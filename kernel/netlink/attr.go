package netlink

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Buffer holds attributes while they are written.
type Buffer []byte

// Attr appends an attribute. Hundreds of them are written for a call, so nothing is allocated for one.
func (b *Buffer) Attr(typ uint16, value ...byte) {
	b.head(typ, len(value))
	*b = append(*b, value...)
	b.pad()
}

// U32 appends a number in network order.
func (b *Buffer) U32(typ uint16, v uint32) {
	b.head(typ, 4)
	*b = binary.BigEndian.AppendUint32(*b, v)
}

// Str appends a text, and a zero byte behind it.
func (b *Buffer) Str(typ uint16, v string) {
	b.head(typ, len(v)+1)
	*b = append(append(*b, v...), 0)
	b.pad()
}

func (b *Buffer) head(typ uint16, size int) {
	*b = binary.NativeEndian.AppendUint16(*b, uint16(unix.SizeofRtAttr+size))
	*b = binary.NativeEndian.AppendUint16(*b, typ)
}

func (b *Buffer) pad() {
	for len(*b)%4 != 0 {
		*b = append(*b, 0)
	}
}

// Nest appends an attribute that holds what fn writes.
func (b *Buffer) Nest(typ uint16, fn func()) {
	at := len(*b)
	b.head(typ|unix.NLA_F_NESTED, 0)
	fn()
	binary.NativeEndian.PutUint16((*b)[at:], uint16(len(*b)-at))
}

// Attr is the value of the first attribute of a kind, down a path of them; nil if there is none.
func Attr(b []byte, path ...uint16) []byte {
	for _, want := range path {
		var first []byte
		for first == nil && len(b) >= unix.SizeofRtAttr {
			n := int(U16(b))
			if n < unix.SizeofRtAttr || n > len(b) {
				break
			}
			if U16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == want {
				first = b[unix.SizeofRtAttr:n]
			}
			b = b[min(Align(n), len(b)):]
		}
		b = first
	}
	return b
}

// Attr32 is Attr of a number in network order; 0 if there is none.
func Attr32(b []byte, path ...uint16) uint32 {
	if v := Attr(b, path...); len(v) == 4 {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

// Align rounds a length up to where the next attribute or message begins.
func Align(n int) int { return (n + 3) &^ 3 }

// EachAttr calls f with each attribute in b.
func EachAttr(b []byte, f func(kind uint16, value []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		n, kind := int(U16(b)), U16(b[2:])&nl.NLA_TYPE_MASK
		if n < unix.SizeofRtAttr || n > len(b) {
			return
		}
		f(kind, b[unix.SizeofRtAttr:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

// U16 is the number of this machine's byte order that b begins with.
func U16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }

// U32 likewise is that of four bytes; 0 where there are fewer.
func U32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// Text is what stands before the first zero byte.
func Text(b []byte) string { return unix.ByteSliceToString(b) }
