package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"golang.org/x/sys/unix"
)

// claimTime is how long a host has to answer an ARP probe. Each address is asked for twice.
const claimTime = 300 * time.Millisecond

// probeSegment asks by ARP whether another interface has an IPv4 address of the container.
func (d *Doctor) probeSegment(ns *kernel.NS, c attach.Cached) {
	l, err := rtnl.LinkByName(ns, c.IfName)
	if err != nil || !l.Ethernet {
		return
	}
	for _, p := range attached.OwnAddresses(c) {
		a := p.Addr()
		if !a.Is4() {
			continue
		}
		mac, err := d.claimed(ns, l, a)
		switch {
		case errors.Is(err, unix.ENETDOWN): // which is a finding
		case err != nil:
			d.Unexamined("whether another interface has %v of %s: %v", a, attached.ShortOwner(c), err)
		case mac != nil:
			d.addWith(AddressDuplicate, "container", duplicate, affects(c, fmt.Sprintf("%v is also at %v", a, mac)),
				advice.OtherAddress(c, a))
		}
	}
}

// claimed returns the MAC of another interface that answers for the address, or nil.
func (d *Doctor) claimed(ns *kernel.NS, l *rtnl.Link, a netip.Addr) (net.HardwareAddr, error) {
	n, err := packet.ListenNeighbours(ns, l, false)
	if err != nil {
		return nil, err
	}
	defer func() { go n.Close() }() // Close waits for a grace period of the kernel
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

// sizeTime is how long the answer to a large packet may take.
const sizeTime = 400 * time.Millisecond

// probeSize sends unfragmentable packets of the size of the container's MTU to the address of --to, or else to the
// gateway of the host. If large packets are lost without an ICMP error, TCP connections hang.
func (d *Doctor) probeSize(ns *kernel.NS, c attach.Cached) {
	given, err := d.Target(d.to, c)
	to := given.Addr()
	if err != nil {
		to = d.router(rtnl.IPv4)
	}
	l, err := rtnl.LinkByName(ns, c.IfName)
	if err != nil || !to.Is4() || l.MTU <= least4 {
		return
	}
	if r, err := rtnl.RouteTo(ns, to); err != nil || r.Link != l.Index {
		return
	}
	mtu := routeMTU(ns, l)
	fits, err := largest(ns, to, mtu)
	if err != nil || fits >= mtu {
		return // without answers to small packets, the size says nothing
	}
	text := fmt.Sprintf("packets of more than %d bytes get no answer from %v", fits, to)
	if link, burst := d.shaped(mtu); link != "" {
		text += fmt.Sprintf(": qdisc tbf of %s has a burst of %d bytes", link, burst)
		d.addWith(HostPathBlocked, "qdisc", "", affects(c, text), look("tc -s qdisc show dev "+link))
		return
	}
	d.addWith(PathMTU, to.String(), text, affects(c, fmt.Sprintf("its MTU is %d", mtu)), smaller(ns, c, l, fits))
}

// router returns the next hop of the host's default route of a family, unless it has a link-local address, which
// containers cannot send to.
func (d *Doctor) router(family uint8) (via netip.Addr) {
	for _, r := range defaultRoutes(d.Host, family) {
		if r.Via.IsValid() && !r.Via.IsLinkLocalUnicast() {
			return r.Via
		}
	}
	return via
}

// least4 is the packet size that each IPv4 link must carry (RFC 791).
const least4 = 576

// largest returns the size of the largest packet, up to most, that is answered. It returns most if an ICMP error
// reports a too large packet, because senders then learn the size. The error is that of a small packet.
func largest(ns *kernel.NS, to netip.Addr, most int) (int, error) {
	answers := func(size int) error {
		return ns.Do(func() error { return ping(to, size, sizeTime) })
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
