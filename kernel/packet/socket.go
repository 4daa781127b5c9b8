// Package packet sends and receives packets: UDP over IPv4 on a link without an address, UDP and ICMP over IPv6, and
// questions to neighbours. The callers define the contents, except those of ARP and neighbour discovery.
package packet

import (
	"cmp"
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func htons(v uint16) uint16 { return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)}) }

// receive waits for a message on a socket until the deadline or the end of ctx, which are os.ErrDeadlineExceeded, and
// returns what the kernel says of it, too.
func receive(ctx context.Context, socket *os.File, deadline time.Time,
	buf []byte) (n int, from unix.Sockaddr, said []unix.SocketControlMessage, err error) {
	if err := socket.SetReadDeadline(deadline); err != nil {
		return 0, nil, nil, err
	}
	defer context.AfterFunc(ctx, func() { socket.SetReadDeadline(time.Unix(1, 0)) })()
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, nil, nil, err
	}
	oob := make([]byte, 128)
	var oobn int
	var rerr error
	err = raw.Read(func(fd uintptr) bool {
		n, oobn, _, from, rerr = unix.Recvmsg(int(fd), buf, oob, 0)
		return rerr != unix.EAGAIN
	})
	if err = cmp.Or(err, rerr); err != nil {
		return 0, nil, nil, err
	}
	said, err = unix.ParseSocketControlMessage(oob[:oobn])
	return n, from, said, err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() {
		return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}
