package v6

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/dhcp"
)

// errTaken says that somebody else has an address that a server gave.
var errTaken = errors.New("somebody else on the link has it")

// The types of ICMPv6 messages (RFC 4861, 4).
const (
	routerSolicitation     = 133
	routerAdvertisement    = 134
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
)

// probeLimit is how long neighbours may take to say that an address is theirs. It is short: who gives the address to the
// link lets the kernel ask once more, and for longer.
const probeLimit = 400 * time.Millisecond

// free asks whether somebody has an address of the lease, and is errTaken where somebody does. The server has to be told
// of that by DECLINE, which the kernel, when it finds out, cannot.
func free(ctx context.Context, s *session, got *dhcp.Lease) error {
	l := s.link
	c, err := l.NS.ListenICMP6(l.Index, l.Name, neighbourAdvertisement)
	if err != nil {
		return fmt.Errorf("link %s: %w", l.Name, err)
	}
	defer c.Close()
	for _, a := range got.Addresses {
		if err := c.Send(solicitation(a.Prefix.Addr(), l.MAC), netip.AddrPortFrom(solicitedNode(a.Prefix.Addr()), 0)); err != nil {
			return fmt.Errorf("link %s: %w", l.Name, err)
		}
	}
	deadline := time.Now().Add(probeLimit)
	var buf [1500]byte
	for {
		n, from, hops, err := c.Receive(ctx, deadline, buf[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("link %s: %w", l.Name, err)
		}
		target, ok := advertised(buf[:n], hops)
		mine := ok && slices.ContainsFunc(got.Addresses, func(a dhcp.Address) bool { return a.Prefix.Addr() == target })
		if mine && from.Addr() != s.self {
			return fmt.Errorf("link %s: address %v, that a server gave: %w", l.Name, target, errTaken)
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
