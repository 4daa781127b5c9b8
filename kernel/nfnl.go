package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A conn is a netlink socket. Requests are answered before sendto returns, so nothing here waits.
type conn struct {
	mu  sync.Mutex
	fd  int
	seq uint32
	buf []byte // of what is received
	out buffer // of what was sent, to be written into again

	kept any // what the package that speaks the protocol keeps as long as the socket is open; under mu
}

// conn is the namespace's socket of a protocol, opened at the first use and kept until Close: a
// NETLINK_NETFILTER socket that is closed while nf_tables has something to destroy waits for a grace
// period.
func (ns *NS) conn(proto int) (*conn, error) {
	ns.connMu.Lock()
	defer ns.connMu.Unlock()
	if c := ns.conns[proto]; c != nil {
		return c, nil
	}
	c := &conn{buf: make([]byte, 1<<16)}
	err := ns.Do(func() (err error) {
		c.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	// The kernel's own words on a failure, without the request in them.
	err = errors.Join(unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1),
		unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
		unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30}))
	if err != nil {
		unix.Close(c.fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if proto == unix.NETLINK_ROUTE {
		// Before Linux 4.20 there is no strict checking, and a dump tells more than it is asked for.
		_ = unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	}
	if ns.conns == nil {
		ns.conns = map[int]*conn{}
	}
	ns.conns[proto] = c
	return c, nil
}

// openConn is conn of a socket that is open already, else nil.
func (ns *NS) openConn(proto int) *conn {
	ns.connMu.Lock()
	defer ns.connMu.Unlock()
	return ns.conns[proto]
}

func (ns *NS) closeConns() {
	ns.connMu.Lock()
	defer ns.connMu.Unlock()
	for _, c := range ns.conns {
		unix.Close(c.fd)
	}
	ns.conns = nil
}

// send sends the requests in one system call and takes their sequence numbers.
func (c *conn) send(r *requests) error {
	r.end()
	c.seq, c.out = r.next-1, r.buffer[:0]
	return c.write(r.buffer)
}

func (c *conn) write(b []byte) error {
	// A container with hundreds of ports is more than the default buffer takes. In a user namespace there is
	// a limit to raising it, and sendto says so.
	if len(b) > 200<<10 && unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*len(b)) != nil {
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 2*len(b))
	}
	for {
		err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// receive calls each with every message that answers the requests from first on, until it returns false.
func (c *conn) receive(first uint32, each func(m message) bool) error {
	for {
		n, err := unix.Read(c.fd, c.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("read", err)
		}
		for b := c.buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				return errors.New("netlink: truncated message")
			}
			m := message{
				typ:   binary.NativeEndian.Uint16(b[4:]),
				flags: binary.NativeEndian.Uint16(b[6:]),
				seq:   binary.NativeEndian.Uint32(b[8:]),
				body:  b[unix.SizeofNlMsghdr:size],
			}
			b = b[min(align4(size), len(b)):]
			if int32(m.seq-first) < 0 { // a late answer to a request whose failure was known already
				continue
			}
			if !each(m) {
				return nil
			}
		}
	}
}

// dump sends a dump request and calls each with the body of every answer.
func (c *conn) dump(r *requests, each func(body []byte)) error {
	if err := c.send(r); err != nil {
		return err
	}
	var failed error
	err := c.receive(r.first, func(m message) bool {
		switch m.typ {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			failed = m.err()
			return false
		}
		each(m.body)
		return m.flags&unix.NLM_F_MULTI != 0
	})
	return errors.Join(err, failed)
}

// A message is one answer of the kernel.
type message struct {
	typ, flags uint16
	seq        uint32
	body       []byte
}

// err is what an NLMSG_ERROR, or the NLMSG_DONE of a dump, says: nil for an acknowledgement.
func (m message) err() error {
	if len(m.body) < 4 {
		if m.typ == unix.NLMSG_DONE {
			return nil
		}
		return errors.New("netlink: truncated message")
	}
	code := -int32(binary.NativeEndian.Uint32(m.body))
	if code == 0 {
		return nil
	}
	errno := syscall.Errno(code)
	head := 4
	if m.typ == unix.NLMSG_ERROR { // the answer holds the header of the request
		head += unix.SizeofNlMsghdr
	}
	if m.flags&unix.NLM_F_ACK_TLVS != 0 && len(m.body) > head {
		if words := Attr(m.body[head:], unix.NLMSGERR_ATTR_MSG); words != nil {
			return fmt.Errorf("%w (%s)", errno, text(words))
		}
	}
	return errno
}

// requests are messages while they are written.
type requests struct {
	buffer
	first uint32 // sequence number of the first message
	next  uint32 // and of the next one
	start int    // of the last message
}

// requests continue the socket's sequence. The caller holds c.mu until they are answered.
func (c *conn) requests() *requests {
	return &requests{buffer: c.out, first: c.seq + 1, next: c.seq + 1}
}

// begin starts a message with a header of its protocol.
func (r *requests) begin(typ, flags uint16, header ...byte) {
	r.end()
	r.start = len(r.buffer)
	b := binary.NativeEndian.AppendUint32(r.buffer, 0) // the length, see end
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, r.next)
	b = binary.NativeEndian.AppendUint32(b, 0)
	r.buffer = append(b, header...)
	r.next++
}

// end writes the last message's length into its header.
func (r *requests) end() {
	if len(r.buffer) > 0 {
		binary.NativeEndian.PutUint32(r.buffer[r.start:], uint32(len(r.buffer)-r.start))
	}
}

// A buffer holds attributes while they are written.
type buffer []byte

// attr appends an attribute. Hundreds of them are written for a call, so nothing is allocated for one.
func (b *buffer) attr(typ uint16, value ...byte) {
	b.head(typ, len(value))
	*b = append(*b, value...)
	b.pad()
}

// u32 and str append the two kinds of value that netfilter has most of.
func (b *buffer) u32(typ uint16, v uint32) {
	b.head(typ, 4)
	*b = binary.BigEndian.AppendUint32(*b, v)
}

func (b *buffer) str(typ uint16, v string) {
	b.head(typ, len(v)+1)
	*b = append(append(*b, v...), 0)
	b.pad()
}

func (b *buffer) head(typ uint16, size int) {
	*b = binary.NativeEndian.AppendUint16(*b, uint16(unix.SizeofRtAttr+size))
	*b = binary.NativeEndian.AppendUint16(*b, typ)
}

func (b *buffer) pad() {
	for len(*b)%4 != 0 {
		*b = append(*b, 0)
	}
}

// nest appends an attribute that holds what fn writes.
func (b *buffer) nest(typ uint16, fn func()) {
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
			n := int(u16(b))
			if n < unix.SizeofRtAttr || n > len(b) {
				break
			}
			if u16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == want {
				first = b[unix.SizeofRtAttr:n]
			}
			b = b[min(align4(n), len(b)):]
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

func align4(n int) int { return (n + 3) &^ 3 }
