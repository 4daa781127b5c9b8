package packet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// A NeighbourConn receives what hosts on an Ethernet link announce about addresses of one family, by ARP or by IPv6
// neighbour discovery. It can also ask them. Closing it takes the kernel a grace period, 10 ms and more.
type NeighbourConn struct {
	f    *os.File
	link *rtnl.Link
	v6   bool
	buf  [1500]byte
}

// A Claim says that a host on the link has an address, or is about to take it.
type Claim struct {
	Addr  netip.Addr
	MAC   net.HardwareAddr
	Probe bool // asks who has it, as who does who wants it
}

const (
	arpEthernet = 1 // ARPHRD_ETHER
	arpRequest  = 1
	arpSize     = 28

	ip6Size               = 40
	neighbourSolicitation = 135
	neighbourAdvert       = 136
	targetLinkAddress     = 2 // of the options of an advertisement
)

// ListenNeighbours starts to listen on a link of the namespace. It does not receive packets of this host.
func ListenNeighbours(ns *kernel.NS, l *rtnl.Link, v6 bool) (*NeighbourConn, error) {
	if !l.Ethernet || len(l.MAC) != 6 {
		return nil, fmt.Errorf("link %s is no Ethernet: %w", l.Name, unix.EAFNOSUPPORT)
	}
	fd, err := openIn(ns, unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	n := &NeighbourConn{f: os.NewFile(uintptr(fd), "neighbours of "+l.Name), link: l, v6: v6}
	if v6 {
		err = attachFilter(fd, discovery())
	}
	if err == nil {
		err = unix.Bind(fd, n.to(nil))
	}
	if err != nil {
		n.Close()
		return nil, os.NewSyscallError("bind", err)
	}
	return n, nil
}

// discovery is a filter that lets nothing in but solicitations and advertisements.
func discovery() []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 6}, // next header
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 4, K: unix.IPPROTO_ICMPV6},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ip6Size}, // type
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: neighbourSolicitation},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: neighbourAdvert},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
}

// to is the link-layer address of a packet that goes to mac.
func (n *NeighbourConn) to(mac []byte) *unix.SockaddrLinklayer {
	a := &unix.SockaddrLinklayer{Ifindex: n.link.Index, Halen: uint8(len(mac))}
	a.Protocol = htons(unix.ETH_P_ARP)
	if n.v6 {
		a.Protocol = htons(unix.ETH_P_IPV6)
	}
	copy(a.Addr[:], mac)
	return a
}

// Close closes the socket.
func (n *NeighbourConn) Close() { n.f.Close() }

// Ask asks all hosts on the link which of them has addr, without a source address of its own. It sends an ARP probe
// (RFC 5227), or a solicitation like that of duplicate address detection (RFC 4862), whose answer goes to all.
func (n *NeighbourConn) Ask(addr netip.Addr) error {
	to, packet := bytes.Repeat([]byte{0xff}, 6), n.probe(addr)
	if n.v6 {
		a := addr.As16()
		to, packet = []byte{0x33, 0x33, 0xff, a[13], a[14], a[15]}, solicitation(addr)
	}
	if err := send(n.f, packet, n.to(to)); err != nil {
		return fmt.Errorf("ask for %v on %s: %w", addr, n.link.Name, err)
	}
	return nil
}

func (n *NeighbourConn) probe(addr netip.Addr) []byte {
	p := make([]byte, 0, arpSize)
	p = append(p, 0, arpEthernet, unix.ETH_P_IP>>8, unix.ETH_P_IP&0xff, 6, 4, 0, arpRequest)
	p = append(append(p, n.link.MAC...), make([]byte, 4+6)...) // from no address, to no host in particular
	return append(p, addr.AsSlice()...)
}

func solicitation(addr netip.Addr) []byte {
	p := make([]byte, ip6Size+24)
	p[0], p[5], p[6], p[7] = 6<<4, 24, unix.IPPROTO_ICMPV6, 255
	a := addr.As16()
	copy(p[24:], []byte{0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a[13], a[14], a[15]}) // its solicited-node group
	msg := p[ip6Size:]
	msg[0] = neighbourSolicitation
	copy(msg[8:], a[:])
	// The length and the protocol count among the addresses and the message.
	binary.BigEndian.PutUint16(msg[2:], Checksum(append([]byte{0, 24, 0, unix.IPPROTO_ICMPV6}, p[8:]...)))
	return p
}

// Next waits for the next claim until the given time. Ok is false if none has come.
func (n *NeighbourConn) Next(ctx context.Context, until time.Time) (c Claim, ok bool, err error) {
	if err := n.f.SetReadDeadline(until); err != nil {
		return c, false, err
	}
	stop := context.AfterFunc(ctx, func() { n.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := n.f.SyscallConn()
	if err != nil {
		return c, false, err
	}
	for {
		var size int
		var from unix.Sockaddr
		var got error
		err := raw.Read(func(fd uintptr) bool {
			size, from, got = unix.Recvfrom(int(fd), n.buf[:], 0)
			return !errors.Is(got, unix.EAGAIN)
		})
		switch {
		case ctx.Err() != nil:
			return c, false, ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return c, false, nil
		case errors.Is(got, unix.EINTR), errors.Is(got, unix.ENOBUFS):
			continue
		case err != nil || got != nil: // the link is gone, or down
			return c, false, fmt.Errorf("listen on %s: %w", n.link.Name, errors.Join(err, got))
		}
		sender, _ := from.(*unix.SockaddrLinklayer)
		if sender == nil || sender.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if c, ok := n.parse(n.buf[:size], sender.Addr[:min(sender.Halen, 6)]); ok && !bytes.Equal(c.MAC, n.link.MAC) {
			return c, true, nil
		}
	}
}

func (n *NeighbourConn) parse(p, sender []byte) (c Claim, ok bool) {
	if !n.v6 {
		if len(p) < arpSize || p[4] != 6 || p[5] != 4 {
			return c, false
		}
		c.MAC, c.Addr = bytes.Clone(p[8:14]), netip.AddrFrom4([4]byte(p[14:18]))
		if c.Addr.IsUnspecified() && p[7] == arpRequest {
			c.Addr, c.Probe = netip.AddrFrom4([4]byte(p[24:28])), true
		}
		return c, true
	}
	if len(p) < ip6Size+24 || p[6] != unix.IPPROTO_ICMPV6 || p[7] != 255 { // less has come by a router
		return c, false
	}
	msg := p[ip6Size:]
	c.MAC, c.Addr = bytes.Clone(sender), netip.AddrFrom16([16]byte(msg[8:24]))
	switch msg[0] {
	case neighbourSolicitation:
		c.Probe = true
		return c, netip.AddrFrom16([16]byte(p[8:24])).IsUnspecified()
	case neighbourAdvert:
		for opt := msg[24:]; len(opt) >= 8 && opt[1] > 0 && len(opt) >= 8*int(opt[1]); opt = opt[8*int(opt[1]):] {
			if opt[0] == targetLinkAddress {
				c.MAC = bytes.Clone(opt[2:8])
			}
		}
		return c, true
	}
	return c, false
}
