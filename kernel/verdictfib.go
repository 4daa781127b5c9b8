package kernel

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// addrType is what the host's routes say of an address: unix.RTN_LOCAL and so on, in the bounds of what the packet
// filter asks, for which all but the table local is unicast in IPv4.
func (w *walk) addrType(a netip.Addr) (kind uint32, ok bool) {
	a = a.Unmap()
	switch {
	case !a.IsValid():
		return 0, false
	case a.IsMulticast():
		return unix.RTN_MULTICAST, true
	case a == netip.IPv4Unspecified(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return unix.RTN_BROADCAST, true
	}
	r, err := w.ns.RouteTo(a)
	switch {
	case err == nil && (r.Type == unix.RTN_LOCAL || r.Type == unix.RTN_BROADCAST || r.Type == unix.RTN_UNICAST):
		return uint32(r.Type), true
	case a.Is4():
		return unix.RTN_UNICAST, true // there is no route, which is not asked for here
	}
	return 0, false
}

// fib loads the type of an address. What else fib can find depends on links and rules that are not known here.
func (m *machine) fib(d []byte) {
	flags, a := attr32(d, unix.NFTA_FIB_FLAGS), m.w.p.Src
	if flags&fibDaddr != 0 {
		a = m.w.p.Dst
	}
	dreg := attr32(d, unix.NFTA_FIB_DREG)
	switch attr32(d, unix.NFTA_FIB_RESULT) {
	case unix.NFT_FIB_RESULT_ADDRTYPE:
		b := unknown(4)
		// Of a link, its own local addresses count alone; what is not local is so on every link.
		if kind, ok := m.w.addrType(a); ok && (flags&(fibIif|fibOif) == 0 || kind == unix.RTN_UNICAST || kind == unix.RTN_MULTICAST) {
			b = native(kind)
		}
		m.put(dreg, b, origin{"fib", d})
	case unix.NFT_FIB_RESULT_OIFNAME:
		m.put(dreg, unknown(16), origin{"fib", d})
	default:
		m.put(dreg, unknown(4), origin{"fib", d})
	}
}

func fibText(d []byte) string {
	s := "fib saddr"
	if attr32(d, unix.NFTA_FIB_FLAGS)&fibDaddr != 0 {
		s = "fib daddr"
	}
	if attr32(d, unix.NFTA_FIB_RESULT) == unix.NFT_FIB_RESULT_ADDRTYPE {
		s += " type"
	}
	return s
}

const (
	fibIif = 1 << 3 // NFTA_FIB_F_IIF
	fibOif = 1 << 4
)
