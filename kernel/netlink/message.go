package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Message is one netlink message that the kernel sent as an answer.
type Message struct {
	Type, Flags uint16
	Seq, Port   uint32 // Port is whose request it is about; 0 is the kernel
	Body        []byte
}

// Messages iterates over the messages in b. It ends before a message that is truncated.
func Messages(b []byte) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			size := int(U32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				return
			}
			m := Message{Type: U16(b[4:]), Flags: U16(b[6:]), Seq: U32(b[8:]), Port: U32(b[12:]),
				Body: b[unix.SizeofNlMsghdr:size]}
			if !yield(m) {
				return
			}
			b = b[min(Align(size), len(b)):]
		}
	}
}

// Err returns the error of an NLMSG_ERROR message, or of the NLMSG_DONE that ends a dump. It returns nil for an
// acknowledgement.
func (m Message) Err() error {
	if len(m.Body) < 4 {
		if m.Type == unix.NLMSG_DONE {
			return nil
		}
		return errors.New("netlink: truncated message")
	}
	code := -int32(binary.NativeEndian.Uint32(m.Body))
	if code == 0 {
		return nil
	}
	errno := syscall.Errno(code)
	head := 4
	if m.Type == unix.NLMSG_ERROR { // the answer holds the header of the request
		head += unix.SizeofNlMsghdr
	}
	if m.Flags&unix.NLM_F_ACK_TLVS != 0 && len(m.Body) > head {
		if words := Attr(m.Body[head:], unix.NLMSGERR_ATTR_MSG); words != nil {
			return fmt.Errorf("%w (%s)", errno, Text(words))
		}
	}
	return errno
}

// A Request is one message to the kernel. The Buffer begins with the header of the message's protocol.
type Request struct {
	Type, Flags uint16
	Buffer
}

// NewRequest returns a request. Header is a structure of the kernel.
func NewRequest(typ, flags uint16, header any) *Request { return &Request{typ, flags, Struct(header)} }

// Struct returns the bytes of a structure of the kernel: of numbers in the machine's byte order, without gaps.
func Struct(of any) Buffer {
	b, err := binary.Append(nil, binary.NativeEndian, of)
	if err != nil {
		panic(err) // a field has no fixed size
	}
	return b
}

// Requests collects messages that go out in one system call.
type Requests struct {
	Buffer
	First uint32 // sequence number of the first message
	Next  uint32 // and of the next one
	start int    // of the last message
}

// Requests returns an empty collection of messages that continues the socket's sequence numbers. The caller holds
// c.mu until the kernel has answered all of them.
func (c *Conn) Requests() *Requests {
	return &Requests{Buffer: c.out, First: c.Seq + 1, Next: c.Seq + 1}
}

// Begin starts a message with the header of its protocol.
func (r *Requests) Begin(typ, flags uint16, header ...byte) {
	r.end()
	r.start = len(r.Buffer)
	b := binary.NativeEndian.AppendUint32(r.Buffer, 0) // the length, see end
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, r.Next)
	b = binary.NativeEndian.AppendUint32(b, 0)
	r.Buffer = append(b, header...)
	r.Next++
}

// end writes the last message's length into its header.
func (r *Requests) end() {
	if len(r.Buffer) > 0 {
		binary.NativeEndian.PutUint32(r.Buffer[r.start:], uint32(len(r.Buffer)-r.start))
	}
}

// NetfilterHeader returns the header of a netfilter message (struct nfgenmsg) for an address family. Its resource ID
// is 0.
func NetfilterHeader(family byte) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// Except returns err, or nil if it is an answer of the kernel with one of these error numbers.
func Except(err error, numbers ...syscall.Errno) error {
	if Is(err, numbers...) {
		return nil
	}
	return err
}

// About adds to an error what the request was about. It returns nil for nil.
func About(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// Is reports whether err is an answer of the kernel with one of these error numbers. The kernel's text does not
// matter.
func Is(err error, numbers ...syscall.Errno) bool {
	for _, n := range numbers {
		if errors.Is(err, n) {
			return true
		}
	}
	return false
}
