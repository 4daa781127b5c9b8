package kernel

import (
	"encoding/binary"
	"net/netip"

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
	// struct inet_diag_req_v2
	req := []byte{family, proto, 0, 0}
	req = binary.NativeEndian.AppendUint32(req, 0xffffffff) // any state
	req = append(req, NFTKey(port)...)                      // its port and address
	req = append(req, 0, 0)                                 // no peer
	req = append(req, append(addr, make([]byte, 32-len(addr))...)...)
	req = binary.NativeEndian.AppendUint32(req, 0)                  // on any link
	req = binary.NativeEndian.AppendUint64(req, 0xffffffffffffffff) // INET_DIAG_NOCOOKIE
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
