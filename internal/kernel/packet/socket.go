// Package packet sends and receives packets: UDP over IPv4 on a link without an address, UDP and ICMP over IPv6, and
// questions to neighbours. The callers define the contents, except those of ARP and neighbour discovery.
package packet

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

func htons(v uint16) uint16 { return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)}) }

// openIn opens a socket in a namespace. A packet socket of protocol 0 receives nothing before it is bound: what came
// earlier would stay in its queue.
func openIn(ns *kernel.NS, family, typ, proto int) (fd int, err error) {
	err = ns.Do(func() (err error) {
		fd, err = unix.Socket(family, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
		return err
	})
	if err != nil {
		return fd, fmt.Errorf("open a socket: %w", err)
	}
	return fd, nil
}

// attachFilter has a socket receive only what a classic BPF program passes.
func attachFilter(fd int, prog []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
}

// keepTypes has a socket receive only the ICMPv6 messages of these types.
func keepTypes(fd int, types ...byte) error {
	var f unix.ICMPv6Filter // a bit that is set keeps a type out
	for i := range f.Data {
		f.Data[i] = ^uint32(0)
	}
	for _, t := range types {
		f.Data[t/32] &^= 1 << (t % 32)
	}
	return unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, 1 /* ICMPV6_FILTER */, &f)
}

// send waits until a message can be sent.
func send(socket *os.File, b []byte, to unix.Sockaddr) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Write(func(fd uintptr) bool {
		serr = unix.Sendto(int(fd), b, 0, to)
		return serr != unix.EAGAIN
	})
	return cmp.Or(err, serr)
}

// Checksum is that of RFC 1071. What has its checksum in itself has the checksum 0.
func Checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

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
