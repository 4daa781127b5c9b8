package doctor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/advice"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/packet"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/trace"
	"golang.org/x/sys/unix"
)

// claimTime is how long somebody has to say that an address is his. Each is asked for twice.
const claimTime = 300 * time.Millisecond

// probeSegment asks by ARP who else has an IPv4 address of the container.
func (d *Doctor) probeSegment(ns *kernel.NS, c attach.Cached) {
	l, err := rtnl.LinkByName(ns, c.IfName)
	if err != nil || !l.Ethernet || c.Result == nil {
		return
	}
	for _, ip := range c.Result.IPs {
		a := ip.Address.Addr()
		if !attached.OwnAddress(c, ip) || !a.Is4() {
			continue
		}
		mac, err := d.claimed(ns, l, a)
		switch {
		case errors.Is(err, unix.ENETDOWN): // which is a finding
		case err != nil:
			d.Blind("whether somebody else has %v of %s: %v", a, c.Owner(), err)
		case mac != nil:
			d.add("address-duplicate", "container", duplicate, who(c, fmt.Sprintf("%v is at %v, too", a, mac)),
				"NET", c.Network, "ADDRESS", a.String())
		}
	}
}

// claimed is the MAC of who says, beside the link itself, that an address is his.
func (d *Doctor) claimed(ns *kernel.NS, l *rtnl.Link, a netip.Addr) (net.HardwareAddr, error) {
	n, err := packet.ListenNeighbours(ns, l, false)
	if err != nil {
		return nil, err
	}
	defer func() { go n.Close() }() // which waits for a grace period
	for range 2 {
		if err := n.Ask(a); err != nil {
			return nil, err
		}
		for until := time.Now().Add(claimTime); ; {
			c, ok, err := n.Next(d.Ctx, until)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			if c.Addr == a && !c.Probe {
				return c.MAC, nil
			}
		}
	}
	return nil, nil
}

// sizeTime is how long an answer to a large packet may take.
const sizeTime = 400 * time.Millisecond

// probeSize sends packets that must not be cut into pieces, as large as the container's link takes them, to the address
// of --to, else to the router of the host's default route. What is lost without a word is a fault: TCP hangs on it.
func (d *Doctor) probeSize(ns *kernel.NS, c attach.Cached) {
	to, _, err := SplitTarget(d.to)
	if err != nil {
		to = d.router()
	}
	l, err := rtnl.LinkByName(ns, c.IfName)
	if err != nil || !to.Is4() || l.MTU <= least4 {
		return
	}
	if r, err := rtnl.RouteTo(ns, to); err != nil || r.Link != l.Index {
		return
	}
	fits, err := largest(ns, to, l.MTU)
	if err != nil || fits >= l.MTU {
		return // without an answer to small ones nothing can be told
	}
	d.add("path-mtu", to.String(), fmt.Sprintf("packets of more than %d bytes get no answer from %v", fits, to),
		who(c, fmt.Sprintf("its MTU is %d", l.MTU)), "", advice.RemakeCommand(c))
}

// router is the next hop of the host's default route of IPv4.
func (d *Doctor) router() (via netip.Addr) {
	routes, err := rtnl.Routes(d.HostNS, rtnl.RouteFilter{Family: rtnl.IPv4, Table: rtnl.MainTable})
	for _, r := range routes {
		if err == nil && r.Dst.Bits() == 0 && r.Type == rtnl.Unicast && r.Via.IsValid() {
			return r.Via
		}
	}
	return via
}

// least4 is the size of packets that every link takes (RFC 791), and of an echo that a path loses for no size.
const least4 = 576

// largest is the size of the largest packet up to most that is answered. It is most where somebody on the way says that
// a packet was too large: then a sender learns it. An error is that of a small one.
func largest(ns *kernel.NS, to netip.Addr, most int) (int, error) {
	conn, err := dialWhole(ns, to)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	seq := uint16(0)
	answers := func(size int) (err error) {
		for range 2 {
			seq++
			if err = echo(conn, size, seq); err == nil || errors.Is(err, unix.EMSGSIZE) {
				return err
			}
		}
		return err
	}
	if err := answers(least4); err != nil {
		return 0, err
	}
	size, above := least4, most+1
	for next := most; above-size > 1; next = (size + above) / 2 {
		switch err := answers(next); {
		case err == nil:
			size = next
		case errors.Is(err, unix.EMSGSIZE):
			return most, nil
		default:
			above = next
		}
	}
	return size, nil
}

// dialWhole opens a socket of ICMP whose packets nobody may cut into pieces, whatever was learnt of the path.
func dialWhole(ns *kernel.NS, to netip.Addr) (conn *net.IPConn, err error) {
	err = ns.Do(func() (err error) {
		conn, err = net.DialIP("ip4:icmp", nil, &net.IPAddr{IP: to.AsSlice()})
		return err
	})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		var serr error
		err = raw.Control(func(fd uintptr) {
			serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		})
		err = errors.Join(err, serr)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// echo sends an echo request in a packet of that size, and waits for the answer.
func echo(conn *net.IPConn, size int, seq uint16) error {
	const headers = 20
	b := make([]byte, size-headers)
	b[0] = 8
	binary.BigEndian.PutUint16(b[4:], uint16(os.Getpid()))
	binary.BigEndian.PutUint16(b[6:], seq)
	binary.BigEndian.PutUint16(b[2:], trace.Checksum(append(b[:len(b):len(b)], make([]byte, len(b)%2)...)))
	if _, err := conn.Write(b); err != nil {
		return err
	}
	conn.SetReadDeadline(time.Now().Add(sizeTime))
	for buf := make([]byte, size); ; {
		n, _, err := conn.ReadFromIP(buf)
		if err != nil {
			return err
		}
		if n >= 8 && buf[0] == 0 && bytes.Equal(buf[4:8], b[4:8]) {
			return nil
		}
	}
}
