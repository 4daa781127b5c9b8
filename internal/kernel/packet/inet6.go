package packet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// An Inet6Conn sends and receives UDP or ICMPv6 messages over IPv6 on one link. Like every socket, it keeps its
// namespace alive.
type Inet6Conn struct {
	file  *os.File
	index int
}

// ListenUDP6 opens an Inet6Conn for UDP on a local address and port of the link with that index.
func ListenUDP6(ns *kernel.NS, index int, link string, local netip.AddrPort) (*Inet6Conn, error) {
	return inet6(ns, index, link, unix.SOCK_DGRAM, unix.IPPROTO_UDP, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrInet6{Port: int(local.Port()), Addr: local.Addr().As16(),
			ZoneId: uint32(index)})
	})
}

// ListenICMP6 opens an Inet6Conn that receives the ICMPv6 messages of these types. It sends with the hop limit 255,
// by which receivers recognize a neighbour (RFC 4861).
func ListenICMP6(ns *kernel.NS, index int, link string, types ...byte) (*Inet6Conn, error) {
	return inet6(ns, index, link, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, func(fd int) error {
		return keepTypes(fd, types...)
	})
}

func inet6(ns *kernel.NS, index int, link string, typ, proto int, bind func(fd int) error) (*Inet6Conn, error) {
	fd, err := openIn(ns, unix.AF_INET6, typ, proto)
	if err != nil {
		return nil, err
	}
	err = unix.BindToDevice(fd, link)
	for _, o := range [][2]int{
		{unix.IPV6_MULTICAST_IF, index}, {unix.IPV6_MULTICAST_LOOP, 0},
		{unix.IPV6_MULTICAST_HOPS, 255}, {unix.IPV6_UNICAST_HOPS, 255}, {unix.IPV6_RECVHOPLIMIT, 1},
	} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, o[0], o[1])
		}
	}
	if err == nil {
		err = bind(fd)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind an IPv6 socket to %s: %w", link, err)
	}
	return &Inet6Conn{os.NewFile(uintptr(fd), "inet6"), index}, nil
}

// Close closes the socket.
func (c *Inet6Conn) Close() error { return c.file.Close() }

// Send sends a message to an address. The port matters only for UDP.
func (c *Inet6Conn) Send(b []byte, to netip.AddrPort) error {
	sa := unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	if to.Addr().IsLinkLocalUnicast() || to.Addr().IsMulticast() {
		sa.ZoneId = uint32(c.index)
	}
	if err := send(c.file, b, &sa); err != nil {
		return fmt.Errorf("send to %v: %w", to.Addr(), err)
	}
	return nil
}

// SolicitRouters sends a router solicitation on a link from the unspecified address, for a host that has no other
// address yet (RFC 4861, 4.1).
func SolicitRouters(ns *kernel.NS, index int) error {
	fd, err := openIn(ns, unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { go unix.Close(fd) }()                              // it takes a grace period
	packet := [48]byte{0: 0x60, 5: 8, 6: unix.IPPROTO_ICMPV6, 7: 255, // payload of 8 bytes, hop limit
		// to ff02::2; what is the same always has always the same sum
		24: 0xff, 25: 2, 39: 2, 40: 133, 42: 0x7b, 43: 0xb8}
	to := unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IPV6), Ifindex: index, Halen: 6,
		Addr: [8]byte{0x33, 0x33, 0, 0, 0, 2}}
	if err := unix.Sendto(fd, packet[:], 0, &to); err != nil {
		return fmt.Errorf("send to routers: %w", err)
	}
	return nil
}

// Receive waits for a message until the deadline or the end of ctx; both give os.ErrDeadlineExceeded. Hops is the hop
// limit of the message, or -1 if the kernel does not tell. A message longer than buf is cut.
func (c *Inet6Conn) Receive(ctx context.Context, deadline time.Time,
	buf []byte) (n int, from netip.AddrPort, hops int, err error) {
	n, sa, said, err := receive(ctx, c.file, deadline, buf)
	if err != nil {
		return 0, from, 0, fmt.Errorf("receive: %w", err)
	}
	if a, ok := sa.(*unix.SockaddrInet6); ok {
		from = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	hops = -1
	for _, m := range said {
		if m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT && len(m.Data) >= 4 {
			hops = int(int32(netlink.U32(m.Data)))
		}
	}
	return n, from, hops, nil
}
