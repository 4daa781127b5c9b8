package packetfilter

import (
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"
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
	r, err := rtnl.RouteTo(w.ns, a)
	switch {
	case err == nil && (r.Type == unix.RTN_LOCAL || r.Type == unix.RTN_BROADCAST || r.Type == unix.RTN_UNICAST):
		return uint32(r.Type), true
	case a.Is4():
		return unix.RTN_UNICAST, true // there is no route, which is not asked for here
	}
	return 0, false
}

// What x/sys lacks names for.
const (
	fibDaddr   = 1 << 1 // NFTA_FIB_F_DADDR
	fibSaddr   = 1 << 0
	fibMark    = 1 << 2
	fibIif     = 1 << 3
	fibOif     = 1 << 4
	fibPresent = 1 << 5 // the answer is 1 or 0, in one byte
)

// wayBack is the link that the packet comes in by, if the way back to its source leads there, and 0 if there is no way
// back at all. Where it leads elsewhere, another table may say otherwise.
func (w *walk) wayBack() (index uint32, ok bool) {
	if !w.p.Src.IsValid() || w.p.In == "" {
		return 0, false
	}
	in, err := rtnl.IndexOf(w.ns, w.p.In)
	r, rerr := rtnl.RouteTo(w.ns, w.p.Src)
	switch {
	case err != nil:
		return 0, false
	case errors.Is(rerr, unix.ENETUNREACH):
		return 0, true
	case rerr != nil || r.Type != unix.RTN_UNICAST || r.Link != in:
		return 0, false
	}
	return uint32(in), true
}

// fib loads the type of an address. What else fib can find depends on links and rules that are not known here.
func (m *machine) fib(d []byte) {
	flags, a := attr32(d, unix.NFTA_FIB_FLAGS), m.w.p.Src
	if flags&fibDaddr != 0 {
		a = m.w.p.Dst
	}
	b := unknown(16)
	if attr32(d, unix.NFTA_FIB_RESULT) == unix.NFT_FIB_RESULT_ADDRTYPE {
		// Of a link, its own local addresses count alone; what is not local is so on every link.
		kind, ok := m.w.addrType(a)
		if ok && (flags&(fibIif|fibOif) == 0 || kind == unix.RTN_UNICAST || kind == unix.RTN_MULTICAST) {
			b = native(kind)
		}
	}
	if asks := flags &^ fibPresent; asks == fibSaddr|fibIif || asks == fibSaddr|fibIif|fibMark {
		index, ok := m.w.wayBack()
		switch {
		case !ok || attr32(d, unix.NFTA_FIB_RESULT) != unix.NFT_FIB_RESULT_OIF:
		case flags&fibPresent == 0:
			b = native(index)
		default:
			b = exactly(byte(min(index, 1)), 0, 0, 0)
		}
	}
	m.store(d, unix.NFTA_FIB_DREG, b, fibText(d))
}
