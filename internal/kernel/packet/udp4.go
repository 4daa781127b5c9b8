package packet

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A UDP4Conn sends and receives IPv4 packets on one link. It works without addresses and bypasses the packet filter.
// Like every socket, it keeps its namespace alive.
type UDP4Conn struct {
	file  *os.File
	index int
}

// ListenUDP4 opens a UDP4Conn that receives the UDP packets for a port on the link with that index.
func ListenUDP4(ns *kernel.NS, index int, port uint16) (*UDP4Conn, error) {
	fd, err := openIn(ns, unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	err = attachFilter(fd, udpTo(port))
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: index})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind a packet socket: %w", err)
	}
	return &UDP4Conn{os.NewFile(uintptr(fd), "packet"), index}, nil
}

// udpTo is the classic BPF program that passes unfragmented UDP for a port, as it is seen from the IPv4 header on.
func udpTo(port uint16) []unix.SockFilter {
	const (
		ldb  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		ldh  = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		ldx  = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
		ldhx = unix.BPF_LD | unix.BPF_H | unix.BPF_IND
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K
	)
	return []unix.SockFilter{
		{Code: ldb, K: 9}, {Code: jeq, K: unix.IPPROTO_UDP, Jf: 6},
		{Code: ldh, K: 6}, {Code: jset, K: 0x3fff, Jt: 4},
		{Code: ldx, K: 0}, {Code: ldhx, K: 2}, {Code: jeq, K: uint32(port), Jf: 1},
		{Code: ret, K: 0xffff},
		{Code: ret, K: 0},
	}
}

// Close closes the socket in the background, because the kernel waits for a grace period of 10 ms and more.
func (c *UDP4Conn) Close() { go c.file.Close() }

// Send sends an IPv4 packet to a link-layer address.
func (c *UDP4Conn) Send(packet []byte, to net.HardwareAddr) error {
	sa := unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: c.index, Halen: uint8(len(to))}
	copy(sa.Addr[:], to)
	if err := send(c.file, packet, &sa); err != nil {
		return fmt.Errorf("send on a packet socket: %w", err)
	}
	return nil
}

// Receive waits for a packet until the deadline or the end of ctx; both give os.ErrDeadlineExceeded. Unsummed is true
// if the packet has no checksum yet: a program of this machine sent it and left the checksum to the network card.
func (c *UDP4Conn) Receive(ctx context.Context, deadline time.Time,
	buf []byte) (n int, from net.HardwareAddr, unsummed bool, err error) {
	n, sa, said, err := receive(ctx, c.file, deadline, buf)
	if err != nil {
		return 0, nil, false, fmt.Errorf("receive on a packet socket: %w", err)
	}
	if ll, ok := sa.(*unix.SockaddrLinklayer); ok {
		from = net.HardwareAddr(ll.Addr[:min(int(ll.Halen), len(ll.Addr))])
	}
	for _, m := range said {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 4 {
			unsummed = netlink.U32(m.Data)&unix.TP_STATUS_CSUMNOTREADY != 0
		}
	}
	return n, from, unsummed, nil
}
