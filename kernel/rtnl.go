package kernel

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dump is what a request answers. A dump that changed while it was read is read again, some times, for the
// kernel warns of that but may have left something out.
func dump(reply uint16, build func() *nl.NetlinkRequest) (msgs [][]byte, err error) {
	for range 5 {
		if msgs, err = build().Execute(unix.NETLINK_ROUTE, reply); !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	return msgs, err
}

// tell sends a request that changes something and waits for the kernel's word on it.
func tell(req *nl.NetlinkRequest) error {
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// attrs calls f with each attribute in b.
func attrs(b []byte, f func(kind uint16, value []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		n, kind := int(nl.NativeEndian().Uint16(b)), nl.NativeEndian().Uint16(b[2:])&nl.NLA_TYPE_MASK
		if n < unix.SizeofRtAttr || n > len(b) {
			return
		}
		f(kind, b[unix.SizeofRtAttr:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return nl.NativeEndian().Uint32(b)
}

func text(b []byte) string { return unix.ByteSliceToString(b) }

func attrU32(kind int, v uint32) *nl.RtAttr    { return nl.NewRtAttr(kind, nl.Uint32Attr(v)) }
func attrText(kind int, s string) *nl.RtAttr   { return nl.NewRtAttr(kind, nl.ZeroTerminated(s)) }
func attrIP(kind int, a netip.Addr) *nl.RtAttr { return nl.NewRtAttr(kind, a.AsSlice()) }

// family is the AF_ of an address.
func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// is reports whether the kernel answered with one of these numbers, whatever words it added.
func is(err error, numbers ...syscall.Errno) bool {
	for _, n := range numbers {
		if errors.Is(err, n) {
			return true
		}
	}
	return false
}
