// Package sockdiag finds the ports on which processes of a namespace listen.
package sockdiag

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Listens returns the first port from first to last on which a process of the namespace receives packets for the
// address host: a listening TCP socket or a bound UDP socket. For one port it asks the kernel for that one socket.
// For several ports it lists all sockets, because the kernel cannot filter by a range.
func Listens(ns *kernel.NS, proto byte, host netip.Addr, first, last uint16) (port uint16, ok bool) {
	c, err := ns.Conn(unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, false
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if last > first {
		return listening(c, proto, host, first, last)
	}
	end, none := append(host.AsSlice(), make([]byte, 16-len(host.AsSlice()))...), make([]byte, 16)
	local, remote := binary.BigEndian.AppendUint16(nil, first), []byte{0, 0}
	if proto == kernel.UDP {
		// What is the socket's own end for TCP is the peer's for UDP, "for historical reasons".
		local, remote, end, none = remote, local, none, end
	}
	r := c.Requests()
	r.Begin(unix.SOCK_DIAG_BY_FAMILY, 0, diagRequest(proto, host.Is6(), 0xffffffff,
		slices.Concat(local, remote, end, none))...)
	if c.Send(r) != nil {
		return 0, false
	}
	err = c.Receive(r.First, func(m netlink.Message) bool {
		ok = m.Type == unix.SOCK_DIAG_BY_FAMILY
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
	diagOnly6        = 11 // INET_DIAG_SKV6ONLY
	diagMessage      = 72 // bytes of struct inet_diag_msg, of which the last four are the socket's inode
	diagSourceOffset = 4  // of struct inet_diag_sockid in struct inet_diag_msg, where the socket's own port is first
)

// listening dumps the sockets that listen on ports from first to last.
func listening(c *netlink.Conn, proto byte, host netip.Addr, first, last uint16) (port uint16, ok bool) {
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
	err := listeners(c, proto, host.Is6(), code, func(l Listener) {
		addr, p := l.At.Addr(), l.At.Port()
		if (addr.IsUnspecified() || host.IsUnspecified() || addr == host) && p >= first && p <= last &&
			(!ok || p < port) {
			port, ok = p, true
		}
	})
	return port, err == nil && ok
}

// A Listener is a listening TCP socket, or a UDP socket that is bound and has no peer.
type Listener struct {
	At    netip.AddrPort
	Only6 bool   // of IPv6: it takes nothing of IPv4
	Inode uint32 // as in the links of /proc/PID/fd
}

// Takes reports whether the listener receives packets for address a of the namespace.
func (l Listener) Takes(a netip.Addr) bool {
	at := l.At.Addr()
	return at == a || at.IsUnspecified() && (at.Is4() == a.Is4() || at.Is6() && !l.Only6)
}

// Listeners returns the sockets of the namespace that listen on a port, of both address families.
func Listeners(ns *kernel.NS, proto byte, port uint16) ([]Listener, error) {
	all, err := AllListeners(ns, proto)
	return slices.DeleteFunc(all, func(l Listener) bool { return l.At.Port() != port }), err
}

// AllListeners returns the sockets of the namespace that listen on any port, of both address families.
func AllListeners(ns *kernel.NS, proto byte) (all []Listener, err error) {
	c, err := ns.Conn(unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, v6 := range []bool{false, true} {
		if err := listeners(c, proto, v6, nil, func(l Listener) { all = append(all, l) }); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// listeners dumps the sockets that listen, those that a program of inet_diag's picks.
func listeners(c *netlink.Conn, proto byte, v6 bool, code []byte, each func(Listener)) error {
	states := uint32(diagListen)
	if proto == kernel.UDP {
		states = diagClosed
	}
	r := c.Requests()
	r.Begin(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, diagRequest(proto, v6, states, make([]byte, 36))...)
	if code != nil {
		r.Attr(diagBytecode, code...)
	}
	return c.Dump(r, func(body []byte) {
		if len(body) < diagMessage {
			return
		}
		at := body[diagSourceOffset:]
		n := 4
		if v6 {
			n = 16
		}
		addr, _ := netip.AddrFromSlice(at[4 : 4+n])
		only := netlink.Attr(body[diagMessage:], diagOnly6)
		each(Listener{
			At:    netip.AddrPortFrom(addr, binary.BigEndian.Uint16(at)),
			Only6: len(only) == 1 && only[0] != 0,
			Inode: binary.NativeEndian.Uint32(body[diagMessage-4:]),
		})
	})
}
