package kernel

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Listens reports whether a process of the namespace listens on a TCP port, or has bound a UDP port, so
// that a packet for that address would reach it. It asks for that one socket.
func (ns *NS) Listens(proto byte, host netip.Addr, port uint16) bool {
	c, err := ns.conn(unix.NETLINK_INET_DIAG)
	if err != nil {
		return false
	}
	family, addr := byte(unix.AF_INET), host.AsSlice()
	if host.Is6() {
		family = unix.AF_INET6
	}
	end, none := append(addr, make([]byte, 16-len(addr))...), make([]byte, 16)
	ours, theirs := NFTKey(port), []byte{0, 0}
	if proto == UDP {
		// What is the socket's own end for TCP is the peer's for UDP, "for historical reasons".
		ours, theirs, end, none = theirs, ours, none, end
	}
	// struct inet_diag_req_v2: family, protocol, in any state, ports, addresses, on any link, and no cookie
	req := binary.NativeEndian.AppendUint32([]byte{family, proto, 0, 0}, 0xffffffff)
	req = slices.Concat(req, ours, theirs, end, none)
	req = binary.NativeEndian.AppendUint32(req, 0)
	req = binary.NativeEndian.AppendUint64(req, 0xffffffffffffffff)
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests()
	r.begin(unix.SOCK_DIAG_BY_FAMILY, 0, req...)
	if c.send(r) != nil {
		return false
	}
	found := false
	err = c.receive(r.first, func(m message) bool {
		found = m.typ == unix.SOCK_DIAG_BY_FAMILY
		return false
	})
	return err == nil && found
}
