package kernel

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Listens returns the first port from first to last on which a process of the namespace listens for TCP, or that
// it has bound for UDP, so that a packet for that address would reach it. Of one port it asks for that
// one socket; of several, which the kernel can pick no other way, it has the kernel look at all that listen.
func (ns *NS) Listens(proto byte, host netip.Addr, first, last uint16) (port uint16, ok bool) {
	c, err := ns.conn(unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if last > first {
		return c.listening(proto, host, first, last)
	}
	end, none := append(host.AsSlice(), make([]byte, 16-len(host.AsSlice()))...), make([]byte, 16)
	ours, theirs := NFTKey(first), []byte{0, 0}
	if proto == UDP {
		// What is the socket's own end for TCP is the peer's for UDP, "for historical reasons".
		ours, theirs, end, none = theirs, ours, none, end
	}
	r := c.requests()
	r.begin(unix.SOCK_DIAG_BY_FAMILY, 0, diagRequest(proto, host.Is6(), 0xffffffff, slices.Concat(ours, theirs, end, none))...)
	if c.send(r) != nil {
		return 0, false
	}
	err = c.receive(r.first, func(m message) bool {
		ok = m.typ == unix.SOCK_DIAG_BY_FAMILY
		return false
	})
	return first, err == nil && ok
}

// diagRequest is struct inet_diag_req_v2: family, protocol, states, then ports and addresses, on any link, and no
// cookie.
func diagRequest(proto byte, v6 bool, states uint32, ends []byte) []byte {
	family := byte(unix.AF_INET)
	if v6 {
		family = unix.AF_INET6
	}
	req := binary.NativeEndian.AppendUint32([]byte{family, proto, 0, 0}, states)
	req = binary.NativeEndian.AppendUint32(append(req, ends...), 0)
	return binary.NativeEndian.AppendUint64(req, 0xffffffffffffffff)
}

// Of inet_diag's little language for filters: at least, and at most a port of the socket's own.
const (
	diagBytecode     = 1
	diagGE, diagLE   = 2, 3
	diagClosed       = 1 << 7 // TCP_CLOSE, in which an unconnected UDP socket is
	diagListen       = 1 << 10
	diagSourceOffset = 4 // of struct inet_diag_sockid in struct inet_diag_msg, where the socket's own port is first
)

// listening dumps the sockets that listen on ports from first to last.
func (c *conn) listening(proto byte, host netip.Addr, first, last uint16) (port uint16, ok bool) {
	states := uint32(diagListen)
	if proto == UDP {
		states = diagClosed
	}
	r := c.requests()
	r.begin(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, diagRequest(proto, host.Is6(), states, make([]byte, 36))...)
	// Each step is an operation with how far to go where it holds and where not (past the end is no), and a port.
	var code []byte
	for i, step := range []struct {
		op   byte
		port uint16
	}{{diagGE, first}, {diagLE, last}} {
		code = append(code, step.op, 8)
		code = binary.NativeEndian.AppendUint16(code, uint16(16-8*i+4))
		code = append(code, 0, 0)
		code = binary.NativeEndian.AppendUint16(code, step.port)
	}
	r.attr(diagBytecode, code...)
	err := c.dump(r, func(body []byte) {
		if len(body) < diagSourceOffset+20 {
			return
		}
		at := body[diagSourceOffset:]
		n := 4
		if host.Is6() {
			n = 16
		}
		addr, _ := netip.AddrFromSlice(at[4 : 4+n])
		if p := binary.BigEndian.Uint16(at); (addr.IsUnspecified() || host.IsUnspecified() || addr == host) && p >= first && p <= last && (!ok || p < port) {
			port, ok = p, true
		}
	})
	return port, err == nil && ok
}
