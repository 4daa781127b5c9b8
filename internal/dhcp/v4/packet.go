package v4

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
)

const (
	serverPort = 67
	clientPort = 68
)

const (
	ipHeader  = 20
	udpHeader = 8
	udp       = 17
)

// frame puts a message into UDP and IPv4, for a socket that does neither.
func frame(from, to netip.Addr, payload []byte) []byte {
	b := make([]byte, ipHeader+udpHeader, ipHeader+udpHeader+len(payload))
	src, dst := from.As4(), to.As4()
	b[0] = 4<<4 | ipHeader/4
	b[1] = 0x10 // lowdelay, as DHCP clients have it
	binary.BigEndian.PutUint16(b[2:], uint16(ipHeader+udpHeader+len(payload)))
	b[8] = 64
	b[9] = udp
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	binary.BigEndian.PutUint16(b[10:], packet.Checksum(b[:ipHeader]))
	u := b[ipHeader:]
	binary.BigEndian.PutUint16(u, clientPort)
	binary.BigEndian.PutUint16(u[2:], serverPort)
	binary.BigEndian.PutUint16(u[4:], uint16(udpHeader+len(payload)))
	b = append(b, payload...)
	c := pseudo(b[12:20], b[ipHeader:])
	if c == 0 { // zero says that there is none
		c = 0xffff
	}
	binary.BigEndian.PutUint16(b[ipHeader+6:], c)
	return b
}

// unframe takes a message out of an IPv4 packet for the client's port.
func unframe(b []byte, unsummed bool) (from netip.Addr, payload []byte, err error) {
	if len(b) < ipHeader || b[0]>>4 != 4 {
		return from, nil, errors.New("not an IPv4 packet")
	}
	head, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if head < ipHeader || total < head+udpHeader || total > len(b) || b[9] != udp {
		return from, nil, errors.New("not a UDP packet")
	}
	if packet.Checksum(b[:head]) != 0 {
		return from, nil, errors.New("wrong checksum of the header")
	}
	u := b[head:total] // what follows is padding
	n := int(binary.BigEndian.Uint16(u[4:]))
	if n < udpHeader || n > len(u) || binary.BigEndian.Uint16(u[2:]) != clientPort ||
		binary.BigEndian.Uint16(u) != serverPort {
		return from, nil, errors.New("not from a server's port")
	}
	u = u[:n]
	if !unsummed && binary.BigEndian.Uint16(u[6:]) != 0 && pseudo(b[12:20], u) != 0 {
		return from, nil, errors.New("wrong checksum")
	}
	return netip.AddrFrom4([4]byte(b[12:16])), u[udpHeader:], nil
}

// pseudo is the checksum of a UDP datagram, with the addresses of its IPv4 packet.
func pseudo(addrs, datagram []byte) uint16 {
	b := binary.BigEndian.AppendUint16([]byte{0, udp}, uint16(len(datagram)))
	return packet.Checksum(append(append(b, addrs...), datagram...))
}
