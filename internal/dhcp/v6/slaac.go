package v6

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// SLAAC has the kernel make addresses of the prefixes that routers advertise (RFC 4862). The zero one is ready.
//
// The addresses are the kernel's to keep: it makes and removes them, and the default route, as routers say. So a lease
// by SLAAC has no end and is never renewed. It says what there was when it was got.
type SLAAC struct {
	Client Client // asks for what routers leave to DHCPv6 (RFC 8415, 18.2.6)
}

var _ dhcp.Protocol = SLAAC{}

// Name implements dhcp.Protocol.
func (SLAAC) Name() string { return "slaac" }

// addressLimit is how long the kernel may take to make an address and to make sure of it.
const addressLimit = 5 * time.Second

// A silence is that of routers. To who keeps leases it is what that of servers is.
type silence struct{ text string }

func (s *silence) Error() string        { return s.text }
func (s *silence) Is(target error) bool { return target == dhcp.ErrNoServer }

// Acquire implements dhcp.Protocol.
func (c SLAAC) Acquire(ctx context.Context, l dhcp.Link, a dhcp.Ask) (*dhcp.Lease, error) {
	if err := turnOn(l, true, a.Metric); err != nil {
		return nil, err
	}
	heard, err := listen(ctx, l)
	if err != nil {
		return nil, err
	}
	defer heard.Close()
	asked := time.Now()
	if _, err := linkLocal(ctx, l); err != nil { // meanwhile routers are heard, and the kernel makes addresses
		return nil, err
	}
	list := heard.await(ctx, time.Hour, func(list []*advert) bool { return len(prefixes(list)) > 0 })
	if len(prefixes(list)) == 0 {
		return nil, nothing(l.Name, list)
	}
	out := &dhcp.Lease{Asked: asked, T1: dhcp.Forever, T2: dhcp.Forever, Valid: dhcp.Forever, Link: l.Name,
		MAC: l.MAC.String()}
	made, err := automatic(ctx, l, heard)
	if err != nil {
		return nil, err
	}
	for _, p := range made {
		out.Addresses = append(out.Addresses, dhcp.Address{Prefix: p, Valid: dhcp.Forever})
	}
	list, _ = heard.now()
	if best(list) != nil { // else no router leads off the link, and there is nothing to wait for
		heard.gateway(ctx, out)
	}
	for _, ra := range list {
		for _, s := range ra.dns {
			if s := s.String(); !slices.Contains(out.DNS.Nameservers, s) {
				out.DNS.Nameservers = append(out.DNS.Nameservers, s)
			}
		}
		for _, d := range ra.search {
			if !slices.Contains(out.DNS.Search, d) {
				out.DNS.Search = append(out.DNS.Search, d)
			}
		}
	}
	out.Server.Addr = out.Gateway
	if len(out.DNS.Nameservers) == 0 && slices.ContainsFunc(list,
		func(ra *advert) bool { return ra.other || ra.managed }) {
		c.inform(ctx, l, a, out)
	}
	return out, nil
}

// half is the length of a prefix that an interface identifier can follow: together they have 128 bits.
const half = 64

// prefixes are those that hosts are to give themselves addresses of. One of another length is to be ignored, and the
// kernel does (RFC 4862, 5.5.3 d).
func prefixes(list []*advert) []netip.Prefix {
	return slices.DeleteFunc(autonomous(list), func(p netip.Prefix) bool { return p.Bits() != half })
}

// autonomous are the prefixes that routers have hosts give themselves addresses of, possible or not.
func autonomous(list []*advert) (ps []netip.Prefix) {
	for _, a := range list {
		for _, p := range a.prefixes {
			if p.auto && p.valid > 0 && p.preferred <= p.valid && !slices.Contains(ps, p.prefix) {
				ps = append(ps, p.prefix)
			}
		}
	}
	return ps
}

func nothing(link string, list []*advert) error {
	if len(list) == 0 {
		return &silence{fmt.Sprintf("link %s: no router advertises anything", link)}
	}
	why := ""
	for _, a := range list {
		if a.managed {
			why = ` (it says that they are to be had by DHCPv6: "dhcpv6")`
		}
	}
	if odd := autonomous(list); len(odd) > 0 {
		why = fmt.Sprintf(" (%v is none: want a /%d)", odd[0], half) + why
	}
	return &silence{fmt.Sprintf("link %s: router %v advertises no prefix that hosts give themselves addresses of%s",
		link, list[0].router, why)}
}

// automatic waits until the kernel has made an address of each prefix and is sure of it, and returns them.
func automatic(ctx context.Context, l dhcp.Link, heard *routers) (made []netip.Prefix, err error) {
	var wait []string
	err = rtnl.Await(l.NS, ctx, addressLimit, []uint{rtnl.IPv6AddrEvents}, func() (bool, error) {
		list, _ := heard.now()
		want := prefixes(list)
		have, err := rtnl.Addrs(l.NS, l.Index)
		made, wait = nil, nil
		for _, p := range want {
			state := "none"
			for _, a := range have {
				switch {
				case !p.Contains(a.Prefix.Addr()) || a.Temporary:
				case a.DADFailed:
					return false, fmt.Errorf("another machine on the link has %v", a.Prefix.Addr())
				case a.Tentative:
					state = "not sure of " + a.Prefix.Addr().String()
				default:
					state = ""
					made = append(made, a.Prefix)
				}
			}
			if state != "" {
				wait = append(wait, fmt.Sprintf("%v: %s", p, state))
			}
		}
		return len(wait) == 0 && len(want) > 0, err
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded) && len(made) > 0:
		slog.Info("the kernel makes no address of some prefix", "link", l.Name, "prefixes", strings.Join(wait, ", "))
		return made, nil
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("the kernel makes no address (%s): %w", strings.Join(wait, ", "), err)
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", l.Name, err)
	}
	return made, nil
}

// inform asks DHCPv6 servers for what is no address. Where none answers, the lease is good without.
func (c SLAAC) inform(ctx context.Context, l dhcp.Link, a dhcp.Ask, out *dhcp.Lease) {
	s, err := c.Client.open(ctx, l)
	if err == nil {
		defer s.Close()
		m := message(dhcpv6.MessageTypeInformationRequest, a, nil)
		_, err = s.exchange(ctx, m, func(r *answer) error {
			if err := status(r.Options.Status()); err != nil {
				return err
			}
			configuration(r.Message, out)
			return nil
		}, nil)
	}
	if err != nil {
		slog.Info("DHCPv6 servers, that routers send hosts to, said nothing", "link", l.Name, "error", err)
	}
}

// Confirm implements dhcp.Protocol. The kernel asks routers by itself when a link comes back.
func (c SLAAC) Confirm(_ context.Context, _ dhcp.Link, _ dhcp.Ask, have *dhcp.Lease) (*dhcp.Lease, error) {
	same := *have
	return &same, nil
}

// Renew implements dhcp.Protocol.
func (c SLAAC) Renew(ctx context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) (*dhcp.Lease, error) {
	return c.Confirm(ctx, l, a, have)
}

// Rebind implements dhcp.Protocol.
func (c SLAAC) Rebind(ctx context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) (*dhcp.Lease, error) {
	return c.Confirm(ctx, l, a, have)
}

// Release implements dhcp.Protocol. No server knows of the addresses.
func (SLAAC) Release(context.Context, dhcp.Link, dhcp.Ask, *dhcp.Lease) error { return nil }

// Decline implements dhcp.Protocol.
func (SLAAC) Decline(context.Context, dhcp.Link, dhcp.Ask, *dhcp.Lease) error { return nil }
