package netlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A Buffer collects netlink attributes for a message.
type Buffer []byte

// Attr appends an attribute with the given type and value. It does not allocate, because one call of a plugin writes
// hundreds of attributes.
func (b *Buffer) Attr(typ uint16, value ...byte) {
	b.head(typ, len(value))
	*b = append(*b, value...)
	b.pad()
}

// U32 appends a 32-bit number in network byte order.
func (b *Buffer) U32(typ uint16, v uint32) {
	b.head(typ, 4)
	*b = binary.BigEndian.AppendUint32(*b, v)
}

// Host16 appends a 16-bit number in the machine's byte order.
func (b *Buffer) Host16(typ uint16, v uint16) {
	b.head(typ, 2)
	*b = binary.NativeEndian.AppendUint16(*b, v)
	b.pad()
}

// Host32 appends a 32-bit number in the machine's byte order.
func (b *Buffer) Host32(typ uint16, v uint32) {
	b.head(typ, 4)
	*b = binary.NativeEndian.AppendUint32(*b, v)
}

// Opt32 appends a number like Host32, unless it is zero.
func (b *Buffer) Opt32(typ uint16, v uint32) {
	if v != 0 {
		b.Host32(typ, v)
	}
}

// OptStr appends a text like Str, unless it is empty.
func (b *Buffer) OptStr(typ uint16, v string) {
	if v != "" {
		b.Str(typ, v)
	}
}

// OptAttr appends an attribute like Attr, unless its value is empty.
func (b *Buffer) OptAttr(typ uint16, value ...byte) {
	if len(value) > 0 {
		b.Attr(typ, value...)
	}
}

// Host64 appends a 64-bit number in the machine's byte order.
func (b *Buffer) Host64(typ uint16, v uint64) {
	b.head(typ, 8)
	*b = binary.NativeEndian.AppendUint64(*b, v)
}

// Bool appends a byte, which is 1 for true.
func (b *Buffer) Bool(typ uint16, on bool) {
	var v byte
	if on {
		v = 1
	}
	b.Attr(typ, v)
}

// Str appends a text with a terminating zero byte.
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

// Nest appends an attribute that contains the attributes that fn appends.
func (b *Buffer) Nest(typ uint16, fn func()) {
	at := len(*b)
	b.head(typ|unix.NLA_F_NESTED, 0)
	fn()
	binary.NativeEndian.PutUint16((*b)[at:], uint16(len(*b)-at))
}

// Attr returns the value of the first attribute whose types are path, outermost first. It returns nil if there is
// none.
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

// Attr32 returns a 32-bit number in network byte order, found like Attr. It returns 0 if there is none.
func Attr32(b []byte, path ...uint16) uint32 {
	if v := Attr(b, path...); len(v) == 4 {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

// Attr64 returns a 64-bit number in network byte order, found like Attr. It returns 0 if there is none.
func Attr64(b []byte, path ...uint16) uint64 {
	if v := Attr(b, path...); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// AttrText returns the text of an attribute that is found like Attr. It returns "" if there is none.
func AttrText(b []byte, path ...uint16) string { return Text(Attr(b, path...)) }

// Align rounds a length up to the next boundary of attributes and messages (4 bytes).
func Align(n int) int { return (n + 3) &^ 3 }

// EachAttr calls f with the type and value of each attribute in b.
func EachAttr(b []byte, f func(kind uint16, value []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		n, kind := int(U16(b)), U16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)
		if n < unix.SizeofRtAttr || n > len(b) {
			return
		}
		f(kind, b[unix.SizeofRtAttr:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

// U16 decodes the first two bytes of b in the machine's byte order. It returns 0 if b is shorter.
func U16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(b)
}

// Net16 decodes the first two bytes of b in network byte order. It returns 0 if b is shorter.
func Net16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// U32 decodes the first four bytes of b in the machine's byte order. It returns 0 if b is shorter.
func U32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// On decodes the first byte of b as a truth value. It returns false if b is empty.
func On(b []byte) bool { return len(b) > 0 && b[0] != 0 }

// Text returns the text before the first zero byte of b.
func Text(b []byte) string { return unix.ByteSliceToString(b) }
