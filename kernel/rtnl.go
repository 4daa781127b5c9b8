package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// newRequest is an empty rtnetlink request, to be filled with the library's package nl and sent by Call. What a
// kind needs in one message the library's own calls often say in several.
func newRequest(proto, flags int) *nl.NetlinkRequest { return nl.NewNetlinkRequest(proto, flags) }

// Call sends a request and returns the replies of that type. The error is the kernel's number and its words.
// The library's Execute panics over the words that end a failed dump.
func (ns *NS) Call(req *nl.NetlinkRequest, reply uint16) (msgs [][]byte, err error) {
	c, err := ns.conn(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	req.Seq = c.seq
	if err := c.write(req.Serialize()); err != nil {
		return nil, err
	}
	var failed error
	interrupted := false
	err = c.receive(req.Seq, func(m message) bool {
		interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
		switch m.typ {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			failed = m.err()
			return false
		case reply:
			msgs = append(msgs, bytes.Clone(m.body))
		}
		return m.flags&unix.NLM_F_MULTI != 0
	})
	if err = errors.Join(err, failed); err == nil && interrupted {
		err = nl.ErrDumpInterrupted
	}
	return msgs, err
}

// dump is what a request answers. A dump that changed while it was read is read again, some times, for the
// kernel warns of that but may have left something out.
func (ns *NS) dump(reply uint16, build func() *nl.NetlinkRequest) (msgs [][]byte, err error) {
	for range 5 {
		if msgs, err = ns.Call(build(), reply); !errors.Is(err, nl.ErrDumpInterrupted) {
			return msgs, err
		}
	}
	return msgs, nil // on a host that never rests, this is as good as it gets
}

// tell sends a request that changes something and waits for the kernel's word on it.
func (ns *NS) tell(req *nl.NetlinkRequest) error {
	_, err := ns.Call(req, 0)
	return err
}

// EachAttr calls f with each attribute in b.
func EachAttr(b []byte, f func(kind uint16, value []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		n, kind := int(u16(b)), u16(b[2:])&nl.NLA_TYPE_MASK
		if n < unix.SizeofRtAttr || n > len(b) {
			return
		}
		f(kind, b[unix.SizeofRtAttr:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

func u16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }

func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
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

// Unanswered reports whether an error says nothing of what the kernel was asked, but only that it could not be asked:
// what does without an answer otherwise is to be tried again.
func Unanswered(err error) bool {
	return is(err, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EINTR, unix.EPERM)
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
