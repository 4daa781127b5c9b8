package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"strconv"
)

// A Count is a number of addresses. An IPv6 subnet can have more than a uint64 can hold.
type Count struct{ hi, lo uint64 }

// CountOf converts n to a Count.
func CountOf(n uint64) Count { return Count{lo: n} }

// span counts the addresses from first to last, both included. For all of IPv6 the result is one too small.
func span(first, last netip.Addr) Count {
	f, l := number(first), number(last)
	n := l.Sub(f)
	if n.hi != ^uint64(0) || n.lo != ^uint64(0) {
		n = n.Add(Count{lo: 1})
	}
	return n
}

// Add returns c+d.
func (c Count) Add(d Count) Count {
	lo, carry := bits.Add64(c.lo, d.lo, 0)
	hi, _ := bits.Add64(c.hi, d.hi, carry)
	return Count{hi, lo}
}

// Sub returns c-d.
func (c Count) Sub(d Count) Count {
	lo, borrow := bits.Sub64(c.lo, d.lo, 0)
	hi, _ := bits.Sub64(c.hi, d.hi, borrow)
	return Count{hi, lo}
}

// Less reports whether c is less than d.
func (c Count) Less(d Count) bool { return c.hi < d.hi || c.hi == d.hi && c.lo < d.lo }

// IsZero reports whether c is 0.
func (c Count) IsZero() bool { return c == Count{} }

// String returns c in decimal.
func (c Count) String() string {
	if c.hi == 0 {
		return strconv.FormatUint(c.lo, 10)
	}
	const ten19 = 10_000_000_000_000_000_000 // the highest power of ten that a uint64 holds
	high := Count{hi: c.hi / ten19}
	var rest uint64
	high.lo, rest = bits.Div64(c.hi%ten19, c.lo, ten19)
	digits := strconv.FormatUint(rest, 10)
	for len(digits) < 19 {
		digits = "0" + digits
	}
	return high.String() + digits
}

// number returns an address as a number. IPv4 addresses are mapped to IPv6.
func number(a netip.Addr) Count {
	b := a.As16()
	return Count{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// Plus returns the address n after a. It must be of the same family as a.
func Plus(a netip.Addr, n uint64) netip.Addr {
	sum := number(a).Add(Count{lo: n})
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], sum.hi)
	binary.BigEndian.PutUint64(b[8:], sum.lo)
	out := netip.AddrFrom16(b)
	if a.Is4() {
		return out.Unmap()
	}
	return out
}

// last returns the last address of p.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As16()
	from := p.Bits()
	if p.Addr().Is4() {
		from += 96
	}
	for i := from; i < 128; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a := netip.AddrFrom16(b)
	if p.Addr().Is4() {
		return a.Unmap()
	}
	return a
}
