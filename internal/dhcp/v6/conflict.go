package v6

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
)

// errTaken says that another host has an address that a server gave.
var errTaken = errors.New("another machine on the link has it")

// The types of ICMPv6 messages (RFC 4861, 4).
const (
	routerSolicitation     = 133
	routerAdvertisement    = 134
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
)

// probeLimit is how long neighbours may take to say that an address is theirs. It is short: who gives the address to
// the link lets the kernel ask once more, and for longer.
const probeLimit = 400 * time.Millisecond

// A probe asks whether another host has an address that is offered.
type probe struct {
	*packet.Inet6Conn
	s     *session
	asked map[netip.Addr]time.Time // the first time
}

func (s *session) probe() (*probe, error) {
	c, err := packet.ListenICMP6(s.link.NS, s.link.Index, s.link.Name, neighbourAdvertisement)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", s.link.Name, err)
	}
	return &probe{Inet6Conn: c, s: s, asked: map[netip.Addr]time.Time{}}, nil
}

// ask asks about the addresses of a lease.
func (p *probe) ask(l *dhcp.Lease) error {
	for _, a := range l.Addresses {
		addr := a.Prefix.Addr()
		if err := p.Send(solicitation(addr, p.s.link.MAC), netip.AddrPortFrom(solicitedNode(addr), 0)); err != nil {
			return fmt.Errorf("link %s: %w", p.s.link.Name, err)
		}
		if _, done := p.asked[addr]; !done {
			p.asked[addr] = time.Now()
		}
	}
	return nil
}

// offered asks about what is offered, which may be anything, as far as that is bearable. What cannot be asked is said
// by free.
func (p *probe) offered(l *dhcp.Lease) {
	if len(p.asked) < most {
		_ = p.ask(l)
	}
}

// free is errTaken where another host has an address of the lease. The server has to be told of that by DECLINE, which
// the kernel, when it finds out, cannot.
func (p *probe) free(ctx context.Context, got *dhcp.Lease) error {
	defer clear(p.asked)               // what was said of others is read away
	if err := p.ask(got); err != nil { // those that were offered once more, for a message may be lost
		return err
	}
	deadline := time.Now().Add(50 * time.Millisecond)
	for _, a := range got.Addresses {
		if until := p.asked[a.Prefix.Addr()].Add(probeLimit); until.After(deadline) {
			deadline = until
		}
	}
	var buf [1500]byte
	for {
		n, from, hops, err := p.Receive(ctx, deadline, buf[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("link %s: %w", p.s.link.Name, err)
		}
		target, ok := advertised(buf[:n], hops)
		mine := ok && slices.ContainsFunc(got.Addresses, func(a dhcp.Address) bool { return a.Prefix.Addr() == target })
		if mine && from.Addr() != p.s.self {
			return fmt.Errorf("link %s: address %v, which the server offered: %w", p.s.link.Name, target, errTaken)
		}
	}
}

// solicitation asks who has an address. The kernel puts the checksum in.
func solicitation(target netip.Addr, mac []byte) []byte {
	b := append([]byte{neighbourSolicitation, 7: 0}, target.AsSlice()...)
	if len(mac) == 6 {
		b = append(append(b, 1, 1), mac...) // where the answer goes
	}
	return b
}

// solicitedNode is the group that who has an address listens to (RFC 4291, 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	g := [16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff}
	b := a.As16()
	copy(g[13:], b[13:])
	return netip.AddrFrom16(g)
}

// advertised is the address that a neighbour says is its own.
func advertised(b []byte, hops int) (netip.Addr, bool) {
	if len(b) < 24 || b[0] != neighbourAdvertisement || b[1] != 0 || hops != 255 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16([16]byte(b[8:24])), true
}
