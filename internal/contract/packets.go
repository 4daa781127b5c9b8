package contract

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel"
	"golang.org/x/sys/unix"
)

// Silence is how long a test waits for a packet that must not come.
const Silence = 500 * time.Millisecond

// RawSocket is a raw ICMP or ICMPv6 socket in ns.
func RawSocket(t testing.TB, ns *kernel.NS, family, proto int, limit time.Duration) int {
	t.Helper()
	var fd int
	if err := ns.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	timeout := unix.NsecToTimeval(limit.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	return fd
}

// Ping sends one echo request from ns and waits for the answer: a packet that is lost is not sent again.
func Ping(t testing.TB, ns *kernel.NS, to string) error {
	t.Helper()
	return PingWithin(t, ns, to, nstest.Patience(t))
}

func PingWithin(t testing.TB, ns *kernel.NS, to string, limit time.Duration) error {
	t.Helper()
	addr := netip.MustParseAddr(to)
	msg := []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}
	answer, family, proto := byte(0), unix.AF_INET, unix.IPPROTO_ICMP
	var sa unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{}}
	if addr.Is4() {
		sa = &unix.SockaddrInet4{Addr: addr.As4()}
		binary.BigEndian.PutUint16(msg[2:], checksum(msg))
	} else {
		sa = &unix.SockaddrInet6{Addr: addr.As16()}
		msg[0], answer, family, proto = 128, 129, unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd := RawSocket(t, ns, family, proto, limit)
	if err := unix.Sendto(fd, msg, 0, sa); err != nil {
		return fmt.Errorf("send to %s: %w", to, err)
	}
	buf := make([]byte, 1500)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return fmt.Errorf("answer of %s: %w", to, err)
		}
		b := buf[:n]
		if addr.Is4() && n > 20 {
			b = b[int(b[0]&15)*4:]
		}
		if len(b) >= 8 && b[0] == answer && bytes.Equal(b[4:8], msg[4:8]) {
			return nil
		}
	}
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
