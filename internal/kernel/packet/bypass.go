package packet

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// SendUDP sends a UDP datagram by the link with that index to the link-layer address of a neighbour, whatever the
// routes say. The packet filter does not see it.
func SendUDP(ns *kernel.NS, index int, via net.HardwareAddr, from, to netip.AddrPort, data []byte) error {
	proto := uint16(unix.ETH_P_IP)
	if to.Addr().Is6() {
		proto = unix.ETH_P_IPV6
	}
	fd, err := openIn(ns, unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	sa := unix.SockaddrLinklayer{Protocol: htons(proto), Ifindex: index, Halen: uint8(len(via))}
	copy(sa.Addr[:], via)
	if err := unix.Sendto(fd, udpPacket(from, to, data), 0, &sa); err != nil {
		return fmt.Errorf("send to %v by %v: %w", to, via, err)
	}
	return nil
}

// udpPacket is a datagram with its headers, those of RFC 768 and of RFC 791 or 8200.
func udpPacket(from, to netip.AddrPort, data []byte) []byte {
	length := 8 + len(data)
	addrs := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(length))
	udp = append(append(udp, 0, 0), data...)
	// The length counts among the addresses, the protocol, and the datagram. That of IPv6 is longer, by zeros.
	pseudo := append(binary.BigEndian.AppendUint16(append([]byte{}, addrs...), uint16(length)), 0, unix.IPPROTO_UDP)
	sum := Checksum(append(pseudo, udp...))
	if sum == 0 { // zero says that there is none
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	const hops = 64
	if to.Addr().Is6() {
		head := []byte{6 << 4, 0, 0, 0, byte(length >> 8), byte(length), unix.IPPROTO_UDP, hops}
		return append(append(head, addrs...), udp...)
	}
	total := 20 + length
	head := []byte{4<<4 | 5, 0, byte(total >> 8), byte(total), 0, 0, 0x40, 0, hops, unix.IPPROTO_UDP, 0, 0}
	head = append(head, addrs...)
	binary.BigEndian.PutUint16(head[10:], Checksum(head))
	return append(head, udp...)
}
