package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A tuple is what flows have in common in one direction. Zero fields match any.
type tuple struct{ src, dst netip.AddrPort }

// bits are the filter's bits for the fields that are given. IPv6 addresses are left out: the kernel's filter
// takes those for a match that differ.
func (t tuple) bits() (bits uint32) {
	for i, p := range []netip.AddrPort{t.src, t.dst} {
		if p.Addr().Is4() {
			bits |= bySrc<<i | byProto
		}
		if p.Port() != 0 {
			bits |= bySrcPort<<i | byProto
		}
	}
	return bits
}

func putTuple(b *netlink.Buffer, typ uint16, t tuple) {
	b.Nest(typ, func() {
		b.Nest(ctaIP, func() {
			for i, p := range []netip.AddrPort{t.src, t.dst} {
				if a := p.Addr(); a.Is4() {
					b.Attr(uint16(1+i), a.AsSlice()...)
				} else if a.Is6() {
					b.Attr(uint16(3+i), a.AsSlice()...)
				}
			}
		})
		b.Nest(ctaProto, func() {
			b.Attr(ctaProtoNum, unix.IPPROTO_UDP)
			for i, p := range []netip.AddrPort{t.src, t.dst} {
				if p.Port() != 0 {
					b.Attr(uint16(ctaSrcPort+i), binary.BigEndian.AppendUint16(nil, p.Port())...)
				}
			}
		})
	})
}

// parseTuple reads a tuple of UDP; of another protocol it is empty.
func parseTuple(b []byte) (t tuple) {
	if !slices.Equal(netlink.Attr(b, ctaProto, ctaProtoNum), []byte{unix.IPPROTO_UDP}) {
		return t
	}
	end := func(a netip.Addr, i uint16) netip.AddrPort {
		port := netlink.Attr(b, ctaProto, ctaSrcPort+i)
		if len(port) != 2 {
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
	}
	src, dst := ctAddrs(b)
	return tuple{end(src, 0), end(dst, 1)}
}

func (t tuple) matches(u tuple) bool {
	for _, p := range [][2]netip.AddrPort{{t.src, u.src}, {t.dst, u.dst}} {
		if p[0].Addr().IsValid() && p[0].Addr() != p[1].Addr() || p[0].Port() != 0 && p[0].Port() != p[1].Port() {
			return false
		}
	}
	return true
}

// putFilter appends a filter by both tuples.
func putFilter(r *netlink.Requests, orig, reply tuple) {
	if orig.bits()|reply.bits() == 0 {
		return // all flows of the family
	}
	putTuple(&r.Buffer, ctaTupleOrig, orig)
	putTuple(&r.Buffer, ctaTupleReply, reply)
	r.Nest(ctaFilter, func() {
		for i, t := range []tuple{orig, reply} {
			// In the byte order of this machine, unlike all else.
			r.Attr(uint16(1+i), binary.NativeEndian.AppendUint32(nil, t.bits())...)
		}
	})
}

// ctAddrs are the addresses of a tuple of any protocol.
func ctAddrs(b []byte) (src, dst netip.Addr) {
	end := func(i uint16) netip.Addr {
		v := netlink.Attr(b, ctaIP, 1+i)
		if v == nil {
			v = netlink.Attr(b, ctaIP, 3+i)
		}
		a, _ := netip.AddrFromSlice(v)
		return a
	}
	return end(0), end(1)
}
