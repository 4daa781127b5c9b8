package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Call sends a request and returns the replies of that type. The error is the kernel's number and its words.
// The library's Execute does the same, but panics over the words that end a failed dump, and takes a new buffer
// of 64 KiB for every message.
func (ns *NS) Call(req *nl.NetlinkRequest, reply uint16) (msgs [][]byte, err error) {
	handle := ns.sockets[unix.NETLINK_ROUTE]
	handle.Socket.Lock()
	defer handle.Socket.Unlock()
	fd := handle.Socket.GetFd()
	req.Seq = atomic.AddUint32(&handle.Seq, 1)
	if err := unix.Sendto(fd, req.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	if ns.buf == nil {
		ns.buf = make([]byte, 1<<16)
	}
	changed := false
	for {
		n, from, err := unix.Recvfrom(fd, ns.buf, unix.MSG_TRUNC)
		switch {
		case err == unix.EAGAIN: // never seen: the kernel answers before sendto returns
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
				return nil, os.NewSyscallError("poll", err)
			}
			continue
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, os.NewSyscallError("recvfrom", err)
		case n > len(ns.buf):
			return nil, fmt.Errorf("rtnetlink answer of %d bytes is too long", n)
		}
		if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
			continue // not the kernel
		}
		for b := ns.buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
			size, kind, flags, seq := int(u32(b)), u16(b[4:]), u16(b[6:]), u32(b[8:])
			if size < unix.SizeofNlMsghdr || size > len(b) {
				break
			}
			data := b[unix.SizeofNlMsghdr:size]
			b = b[min((size+3)&^3, len(b)):]
			if seq != req.Seq {
				continue // the rest of an answer that nobody waited for
			}
			changed = changed || flags&unix.NLM_F_DUMP_INTR != 0
			switch kind {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				if err := answer(kind, flags, data); err != nil {
					return nil, err
				}
				if changed {
					return msgs, nl.ErrDumpInterrupted
				}
				return msgs, nil
			case reply:
				msgs = append(msgs, bytes.Clone(data))
			}
			if flags&unix.NLM_F_MULTI == 0 {
				return msgs, nil
			}
		}
	}
}

// answer is the error in the message that ends an exchange, if any.
func answer(kind, flags uint16, data []byte) error {
	number := syscall.Errno(-int32(u32(data)))
	if number == 0 {
		return nil
	}
	words := ""
	if flags&unix.NLM_F_ACK_TLVS != 0 {
		data = data[min(4, len(data)):]
		if kind == unix.NLMSG_ERROR { // the request comes first, or its header
			n := unix.SizeofNlMsghdr
			if flags&unix.NLM_F_CAPPED == 0 {
				n = max(n, int(u32(data)+3)&^3)
			}
			data = data[min(n, len(data)):]
		}
		attrs(data, func(kind uint16, v []byte) {
			if kind == unix.NLMSGERR_ATTR_MSG {
				words = text(v)
			}
		})
	}
	if words == "" {
		return number
	}
	return fmt.Errorf("%w: %s", number, words)
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

// attrs calls f with each attribute in b.
func attrs(b []byte, f func(kind uint16, value []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		n, kind := int(u16(b)), u16(b[2:])&nl.NLA_TYPE_MASK
		if n < unix.SizeofRtAttr || n > len(b) {
			return
		}
		f(kind, b[unix.SizeofRtAttr:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

func u16(b []byte) uint16 { return nl.NativeEndian().Uint16(b) }

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
