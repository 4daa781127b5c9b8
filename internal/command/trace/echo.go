package trace

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/kernel"
)

// Echo sends an echo request from the thread's namespace, and waits for its answer. A size other than 0 is that of the
// packet of IPv4, which is not fragmented, whatever path MTU the kernel knows.
func Echo(ctx context.Context, to netip.Addr, number uint16, size int) error {
	network, ask, answer := "ip4:icmp", byte(8), byte(0)
	if to.Is6() {
		network, ask, answer = "ip6:ipv6-icmp", 128, 129
	}
	conn, err := net.DialIP(network, nil, &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()})
	if err != nil {
		return err
	}
	defer conn.Close()
	if size != 0 {
		if err := packet.KeepWhole(conn); err != nil {
			return err
		}
	}

	const ipHeader = 20
	echo := make([]byte, max(8, size-ipHeader))
	echo[0] = ask
	binary.BigEndian.PutUint16(echo[4:], uint16(rand.Uint32())) // conntrack takes what has the same for one flow
	binary.BigEndian.PutUint16(echo[6:], number)
	if to.Is4() { // of IPv6 the kernel fills it in
		binary.BigEndian.PutUint16(echo[2:], packet.Checksum(echo))
	}
	if _, err = conn.Write(echo); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	for buf := make([]byte, 1500); ; {
		n, _, err := conn.ReadFromIP(buf)
		if err != nil {
			return err
		}
		if n >= 8 && buf[0] == answer && bytes.Equal(buf[4:8], echo[4:8]) {
			return nil
		}
	}
}

// ICMP returns the protocol of an address's family that echo requests belong to.
func ICMP(a netip.Addr) byte {
	if a.Is6() {
		return kernel.ICMPv6
	}
	return kernel.ICMP
}
