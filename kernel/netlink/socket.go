// Package netlink implements a netlink socket. It sends several requests in one system call, returns the kernel's
// error texts, and reads and writes attributes. It knows no protocol: packages rtnl, nft, conntrack and sockdiag
// define the messages.
package netlink

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A Conn is a netlink socket. The kernel answers a request before sendto returns, so no method waits for the kernel.
type Conn struct {
	Mu  sync.Mutex
	FD  int
	Seq uint32
	buf []byte // of what is received
	out Buffer // of what was sent, to be written into again

	Kept any // what the package that speaks the protocol keeps as long as the socket is open; under mu
}

// Dial opens a socket of a netlink protocol in the calling thread's network namespace.
func Dial(proto int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// The kernel's own words on a failure, without the request in them.
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30}))
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if proto == unix.NETLINK_ROUTE {
		// Before Linux 4.20 there is no strict checking, and a dump tells more than it is asked for.
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	}
	return &Conn{FD: fd, buf: make([]byte, 1<<16)}, nil
}

// Close closes the socket. The kernel first finishes a request that it is working on.
func (c *Conn) Close() { unix.Close(c.FD) }

// Send sends the requests in one system call. It uses up their sequence numbers.
func (c *Conn) Send(r *Requests) error {
	r.end()
	c.Seq, c.out = r.Next-1, r.Buffer[:0]
	return c.Write(r.Buffer)
}

// Write sends messages without changing them. It enlarges the socket's send buffer if they do not fit.
func (c *Conn) Write(b []byte) error {
	// A container with hundreds of ports is more than the default buffer takes. In a user namespace there is
	// a limit to raising it, and sendto says so.
	if len(b) > 200<<10 && unix.SetsockoptInt(c.FD, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*len(b)) != nil {
		_ = unix.SetsockoptInt(c.FD, unix.SOL_SOCKET, unix.SO_SNDBUF, 2*len(b))
	}
	for {
		err := unix.Sendto(c.FD, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// Receive calls each with every answer to the requests from sequence number first on, until each returns false.
func (c *Conn) Receive(first uint32, each func(m Message) bool) error {
	for {
		n, err := unix.Read(c.FD, c.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("read", err)
		}
		whole := 0
		for m := range Messages(c.buf[:n]) {
			whole += Align(unix.SizeofNlMsghdr + len(m.Body))
			if int32(m.Seq-first) < 0 { // a late answer to a request whose failure was known already
				continue
			}
			if !each(m) {
				return nil
			}
		}
		if whole < n {
			return errors.New("netlink: truncated message")
		}
	}
}

// Dump sends a dump request and calls each with the body of every answer.
func (c *Conn) Dump(r *Requests, each func(body []byte)) error {
	if err := c.Send(r); err != nil {
		return err
	}
	var failed error
	err := c.Receive(r.First, func(m Message) bool {
		switch m.Type {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			failed = m.Err()
			return false
		}
		each(m.Body)
		return m.Flags&unix.NLM_F_MULTI != 0
	})
	return errors.Join(err, failed)
}
