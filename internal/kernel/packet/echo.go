package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// An Echo is a message of ICMP (RFC 792) or ICMPv6 (RFC 4443) that asks for itself, or answers.
type Echo struct {
	Reply   bool
	ID, Seq uint16
	Data    []byte
}

// EchoOverhead returns the bytes of an echo's packet beside its data: the IP header without options, and the message's.
func EchoOverhead(to netip.Addr) int {
	if to.Is4() {
		return 20 + 8
	}
	return 40 + 8
}

// An EchoConn sends echo requests from one local address, and receives requests and replies that are sent to it. It
// fragments nothing and asks others not to; of the path, only the MTU of the link counts, not that of the route.
type EchoConn struct {
	file *os.File
	v4   bool
}

// ListenEcho opens an EchoConn. It keeps its namespace alive.
func ListenEcho(ns *kernel.NS, local netip.Addr) (*EchoConn, error) {
	family, proto := unix.AF_INET6, unix.IPPROTO_ICMPV6
	if local.Is4() {
		family, proto = unix.AF_INET, unix.IPPROTO_ICMP
	}
	fd, err := openIn(ns, family, unix.SOCK_RAW, proto)
	if err != nil {
		return nil, err
	}
	if local.Is4() {
		err = echoOptions4(fd)
	} else {
		err = echoOptions6(fd)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(local, 0)))
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("ICMP at %v: %w", local, err)
	}
	return &EchoConn{os.NewFile(uintptr(fd), "echo"), local.Is4()}, nil
}

// The types of messages.
const (
	request4, reply4 = 8, 0
	request6, reply6 = 128, 129
)

func echoOptions4(fd int) error {
	const icmpFilter = 1 // of linux/icmp.h; a bit that is set keeps a type out
	keep := uint32(1<<request4 | 1<<reply4)
	if err := unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, int(int32(^keep))); err != nil {
		return err
	}
	return keepWhole(fd)
}

// KeepWhole has the kernel never fragment what an IPv4 socket sends, whatever path MTU it knows.
func KeepWhole(conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = keepWhole(int(fd)) })
	return errors.Join(err, failed)
}

func keepWhole(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
}

func echoOptions6(fd int) error {
	if err := keepTypes(fd, request6, reply6); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
}

// Close closes the socket, and ends Receive with os.ErrClosed.
func (c *EchoConn) Close() error { return c.file.Close() }

// Send sends an echo request. It does not wait: a full queue is an error.
func (c *EchoConn) Send(to netip.Addr, e Echo) error {
	b := make([]byte, 8, 8+len(e.Data))
	b[0] = request6
	if c.v4 {
		b[0] = request4
	}
	binary.BigEndian.PutUint16(b[4:], e.ID)
	binary.BigEndian.PutUint16(b[6:], e.Seq)
	b = append(b, e.Data...)
	if c.v4 { // of ICMPv6 the kernel makes it
		binary.BigEndian.PutUint16(b[2:], Checksum(b))
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = unix.Sendto(int(fd), b, 0, sockaddr(netip.AddrPortFrom(to, 0))) })
	if err == nil {
		err = serr
	}
	if err != nil {
		return fmt.Errorf("send %d bytes to %v: %w", len(b)+EchoOverhead(to)-8, to, err)
	}
	return nil
}

// Receive waits for a message. Its data is in buf, which has to have room for the packet; the rest of a longer one is
// lost. What is no echo is passed over.
func (c *EchoConn) Receive(buf []byte) (e Echo, from netip.Addr, err error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return Echo{}, netip.Addr{}, err
	}
	for {
		var n int
		var sa unix.Sockaddr
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			n, sa, rerr = unix.Recvfrom(int(fd), buf, 0)
			return rerr != unix.EAGAIN
		})
		if err == nil {
			err = rerr
		}
		if err != nil {
			return Echo{}, netip.Addr{}, err
		}
		if e, ok := c.parse(buf[:n]); ok {
			return e, addrOf(sa), nil
		}
	}
}

// parse reads what the kernel delivers: with an IPv4 header, and without one of IPv6.
func (c *EchoConn) parse(b []byte) (e Echo, ok bool) {
	request, reply := byte(request6), byte(reply6)
	if c.v4 {
		request, reply = request4, reply4
		header := 0
		if len(b) > 0 {
			header = int(b[0]&15) * 4
		}
		if header < 20 || len(b) < header {
			return Echo{}, false
		}
		b = b[header:]
	}
	if len(b) < 8 || b[0] != request && b[0] != reply || b[1] != 0 {
		return Echo{}, false
	}
	return Echo{Reply: b[0] == reply, ID: binary.BigEndian.Uint16(b[4:]), Seq: binary.BigEndian.Uint16(b[6:]),
		Data: b[8:]}, true
}

func addrOf(sa unix.Sockaddr) netip.Addr {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(sa.Addr)
	}
	return netip.Addr{}
}

// ListenUDP opens a UDP socket at an address and port of the namespace. [ArrivedBy] says by which link its datagrams
// came.
func ListenUDP(ns *kernel.NS, local netip.AddrPort) (*net.UDPConn, error) {
	fd, err := openIn(ns, int(rtnl.Family(local.Addr())), unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	if local.Addr().Is4() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	} else {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(local))
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen at UDP %v: %w", local, err)
	}
	f := os.NewFile(uintptr(fd), "udp")
	defer f.Close()
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// ArrivedBy returns the index of the link by which a datagram came, from what the kernel says of it. Zero is unknown.
func ArrivedBy(oob []byte) (index int) {
	said, _ := unix.ParseSocketControlMessage(oob)
	for _, m := range said {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 4:
			index = int(binary.NativeEndian.Uint32(m.Data))
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 20:
			index = int(binary.NativeEndian.Uint32(m.Data[16:]))
		}
	}
	return index
}
