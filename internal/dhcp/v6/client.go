// Package v6 gets IPv6 leases: by DHCPv6 (RFC 8415), and from what routers advertise (RFC 4861, RFC 4862).
package v6

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// A Client speaks DHCPv6. The zero one is ready.
//
// DHCPv6 says neither what else is on the link nor who leads off it: routers do. So its addresses have the length 128,
// the kernel has the routes to the link's prefixes and the default route from the routers and keeps them as these say,
// and the gateway of a lease is the router that was there when it was got.
type Client struct {
	// First is the pause before a message is sent again; it doubles up to Max. Zero: those of RFC 8415.
	First, Max time.Duration
}

var _ dhcp.Protocol = Client{}

// Name implements dhcp.Protocol.
func (Client) Name() string { return "dhcpv6" }

// errMore says that a good answer is taken, and others are awaited.
var errMore = errors.New("more are awaited")

// attempts is how often an address is asked for that another host turns out to have, or another server's, or no
// server's.
const attempts = 4

// Acquire implements dhcp.Protocol. Servers have a second to answer, as RFC 8415 demands; the one that prefers itself
// most is taken, unless one gives a lease at once (Rapid Commit). A lease whose address a host on the link has is
// declined, and another one asked for.
func (c Client) Acquire(ctx context.Context, l dhcp.Link, a dhcp.Ask) (*dhcp.Lease, error) {
	if err := turnOn(l, false, a.Metric); err != nil {
		return nil, err
	}
	heard, err := listen(ctx, l)
	if err != nil {
		return nil, err
	}
	defer heard.Close()
	s, err := c.open(ctx, l)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	p, err := s.probe()
	if err != nil {
		return nil, err
	}
	defer p.Close()
	var last error
	for range attempts {
		got, err := s.acquire(ctx, a, p)
		if err == nil {
			if err = p.free(ctx, got); err == nil {
				heard.gateway(ctx, got)
				return got, nil
			}
			if derr := c.Decline(ctx, l, a, got); derr != nil {
				err = errors.Join(err, derr)
			}
			a.Address = netip.Addr{}
		}
		if last = err; ctx.Err() != nil || !errors.Is(err, errTaken) && !errors.Is(err, errLost) {
			break
		}
	}
	if errors.Is(last, dhcp.ErrNoServer) {
		last = heard.explain(last)
	}
	return nil, last
}

// errLost says that the server whose offer was taken did not keep to it.
var errLost = errors.New("the server's offer was gone")

// acquire is SOLICIT, ADVERTISE, REQUEST, REPLY; or SOLICIT and REPLY, with a server that does that (RFC 8415, 18.2.1).
// Neighbours are asked about an address as soon as it is offered.
func (s *session) acquire(ctx context.Context, a dhcp.Ask, p *probe) (*dhcp.Lease, error) {
	m := message(dhcpv6.MessageTypeSolicit, a, nil)
	if a.Delegate == 0 { // else who has no prefix would commit the address alone
		put(m, dhcpv6.OptionRapidCommit, nil)
	}
	associations(m, a, nil, true, true)
	var best, committed *dhcp.Lease
	var refused error
	most, late := -1, false
	asked, err := s.exchange(ctx, m, func(r *answer) error {
		offer, err := lease(r.Message, s.link, a, nil, true)
		switch {
		case decides(err):
			refused = err // another server may have what this one has not
			return errMore
		case err != nil:
			return err
		}
		p.offered(offer)
		if r.MessageType == dhcpv6.MessageTypeReply {
			committed, offer.Server.Addr = offer, r.from
			return nil
		}
		if p := preference(r.Message); p > most {
			best, most = offer, p
		}
		if late || most == 255 { // none can be better
			return nil
		}
		return errMore
	}, func() (bool, error) {
		late = true
		if best == nil {
			return refused != nil, refused
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	if committed != nil {
		committed.Asked = asked
		return committed, nil
	}
	m = message(dhcpv6.MessageTypeRequest, a, nil)
	put(m, optServerID, best.Server.ID)
	associations(m, a, best, true, true) // else it may give others than it offered
	got, err := s.ask(ctx, m, a, nil, true)
	if decides(err) || errors.Is(err, dhcp.ErrNoServer) && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", errLost, err)
	}
	return got, err
}

func preference(r *dhcpv6.Message) int {
	if p := option(r, dhcpv6.OptionPreference); len(p) == 1 {
		return int(p[0])
	}
	return 0
}

// ask exchanges m for a lease.
func (s *session) ask(ctx context.Context, m *dhcpv6.Message, a dhcp.Ask, have *dhcp.Lease,
	addresses bool) (got *dhcp.Lease, err error) {
	asked, err := s.exchange(ctx, m, func(r *answer) (err error) {
		if got, err = lease(r.Message, s.link, a, have, addresses); err == nil {
			got.Server.Addr = r.from
		}
		return err
	}, nil)
	if err != nil {
		return nil, err
	}
	got.Asked = asked
	return got, nil
}

// Confirm implements dhcp.Protocol. Where a prefix is delegated, which CONFIRM cannot speak of, it is REBIND (RFC 8415,
// 18.2.12). The times of the lease do not change by CONFIRM.
func (c Client) Confirm(ctx context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) (*dhcp.Lease, error) {
	if a.Delegate > 0 {
		ctx, stop := context.WithTimeout(ctx, 10*time.Second)
		defer stop()
		return Client{First: cmp.Or(c.First, time.Second), Max: cmp.Or(c.Max, 4*time.Second)}.Rebind(ctx, l, a, have)
	}
	s, err := c.open(ctx, l)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	m := message(dhcpv6.MessageTypeConfirm, a, have)
	associations(m, a, have, true, false)
	if _, err := s.exchange(ctx, m, func(r *answer) error { return status(r.Options.Status()) }, nil); err != nil {
		return nil, err
	}
	same := *have
	return &same, nil
}

// Renew implements dhcp.Protocol.
func (c Client) Renew(ctx context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) (*dhcp.Lease, error) {
	m := message(dhcpv6.MessageTypeRenew, a, have)
	put(m, optServerID, have.Server.ID)
	return c.extend(ctx, l, m, a, have)
}

// Rebind implements dhcp.Protocol.
func (c Client) Rebind(ctx context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) (*dhcp.Lease, error) {
	return c.extend(ctx, l, message(dhcpv6.MessageTypeRebind, a, have), a, have)
}

func (c Client) extend(ctx context.Context, l dhcp.Link, m *dhcpv6.Message, a dhcp.Ask,
	have *dhcp.Lease) (*dhcp.Lease, error) {
	s, err := c.open(ctx, l)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	associations(m, a, have, true, true)
	return s.ask(ctx, m, a, have, true)
}

// Release implements dhcp.Protocol. Whatever the server says to it, the lease is over for it.
func (c Client) Release(ctx context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) error {
	return c.giveUp(ctx, dhcpv6.MessageTypeRelease, l, a, have)
}

// Decline implements dhcp.Protocol. What is delegated is released: the next lease brings its own.
func (c Client) Decline(ctx context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) error {
	err := c.giveUp(ctx, dhcpv6.MessageTypeDecline, l, a, have)
	if len(have.Delegated) > 0 {
		rest := *have
		rest.Addresses = nil
		err = errors.Join(err, c.giveUp(ctx, dhcpv6.MessageTypeRelease, l, a, &rest))
	}
	return err
}

func (c Client) giveUp(ctx context.Context, typ dhcpv6.MessageType, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) error {
	s, err := c.open(ctx, l)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.giveUp(ctx, typ, a, have)
}

func (s *session) giveUp(ctx context.Context, typ dhcpv6.MessageType, a dhcp.Ask, have *dhcp.Lease) error {
	m := message(typ, a, have)
	put(m, optServerID, have.Server.ID)
	associations(m, a, have, len(have.Addresses) > 0, typ == dhcpv6.MessageTypeRelease)
	_, err := s.exchange(ctx, m, func(*answer) error { return nil }, nil)
	return err
}

// defaultBy are the routes of a lease: by the router, where there is one.
func defaultBy(router netip.Addr) []spec.Route {
	if !router.IsValid() {
		return nil
	}
	return []spec.Route{{Dst: netip.PrefixFrom(netip.IPv6Unspecified(), 0), GW: router}}
}
