// Package v4 gets leases by DHCPv4 (RFC 2131).
package v4

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// A Client speaks DHCPv4. The zero one is ready.
type Client struct {
	// First is the pause before a message is sent again; it doubles up to Max, and each is a quarter longer or shorter
	// by chance. Zero: 1 s and 16 s. RFC 2131 begins with 4 s, and a container waits.
	First, Max time.Duration
}

var _ dhcp.Protocol = Client{}

// Name implements dhcp.Protocol.
func (Client) Name() string { return "dhcpv4" }

// attempts is how many addresses that another host has are declined before that is an error.
const attempts = 4

// Acquire implements dhcp.Protocol. Of several offers the first is taken.
func (c Client) Acquire(ctx context.Context, l dhcp.Link, a dhcp.Ask) (*dhcp.Lease, error) {
	s, err := c.open(l)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for try := 1; ; try++ {
		got, err := s.acquire(ctx, a)
		if err != nil || !a.Probe {
			return got, err
		}
		if err = free(ctx, l, address(got)); err == nil {
			return got, nil
		}
		err = errors.Join(err, c.Decline(ctx, l, a, got))
		if !errors.Is(err, errTaken) || try == attempts {
			return nil, err
		}
		slog.Warn("an address is declined", "owner", a.Owner, "reason", err)
		if perr := s.pause(ctx, c.first()); perr != nil {
			return nil, errors.Join(err, perr)
		}
		a.Address = netip.Addr{}
	}
}

// acquire is DISCOVER, OFFER, REQUEST, ACK.
func (s *session) acquire(ctx context.Context, a dhcp.Ask) (*dhcp.Lease, error) {
	var refusal error
	for {
		l := s.link
		discover := request(dhcpv4.MessageTypeDiscover, l, a, nil)
		if a.Address.Is4() {
			discover.Options[optAddress] = a.Address.AsSlice()
		}
		offer, err := s.exchange(ctx, 0, discover, everywhere(), dhcpv4.MessageTypeOffer)
		if err != nil {
			return nil, errors.Join(err, refusal)
		}
		m := request(dhcpv4.MessageTypeRequest, l, a, nil)
		m.TransactionID = discover.TransactionID
		m.Options[optServer] = offer.lease.Server.Addr.AsSlice()
		m.Options[optAddress] = offer.addr().AsSlice()
		got, err := s.exchange(ctx, 4, m, everywhere(), dhcpv4.MessageTypeAck)
		if err == nil && got.nak {
			err = got.refusal()
		}
		switch {
		case err == nil:
			remember(got.lease, a.Owner)
			return got.lease, nil
		case errors.Is(err, dhcp.ErrRefused): // another host was faster: a new offer, but not at once
			refusal = err
			if err := s.pause(ctx, s.c.first()); err != nil {
				return nil, errors.Join(err, refusal)
			}
		case !errors.Is(err, dhcp.ErrNoServer) || ctx.Err() != nil:
			return nil, err
		}
	}
}

// Confirm implements dhcp.Protocol: the state INIT-REBOOT.
func (c Client) Confirm(ctx context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) (*dhcp.Lease, error) {
	m := request(dhcpv4.MessageTypeRequest, l, a, have)
	m.Options[optAddress] = address(have).AsSlice()
	return c.extend(ctx, l, m, everywhere(), have)
}

// Renew implements dhcp.Protocol.
func (c Client) Renew(ctx context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) (*dhcp.Lease, error) {
	m := request(dhcpv4.MessageTypeRequest, l, a, have)
	m.ClientIPAddr = address(have).AsSlice()
	return c.extend(ctx, l, m, have.Server.Addr, have)
}

// Rebind implements dhcp.Protocol.
func (c Client) Rebind(ctx context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) (*dhcp.Lease, error) {
	m := request(dhcpv4.MessageTypeRequest, l, a, have)
	m.ClientIPAddr = address(have).AsSlice()
	return c.extend(ctx, l, m, everywhere(), have)
}

func (c Client) extend(ctx context.Context, l dhcp.Link, m *dhcpv4.DHCPv4, to netip.Addr,
	have *dhcp.Lease) (*dhcp.Lease, error) {
	s, err := c.open(l)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	s.known = have
	got, err := s.exchange(ctx, 0, m, to, dhcpv4.MessageTypeAck)
	switch {
	case err != nil:
		return nil, err
	case got.nak:
		return nil, got.refusal()
	}
	if !got.lease.Server.Addr.IsValid() {
		got.lease.Server.Addr = have.Server.Addr
	}
	got.lease.State = have.State
	return got.lease, nil
}

// Release implements dhcp.Protocol. It gets no answer, so it goes straight to where the server's answers came from: in
// a queue behind a question for the neighbour it would be lost with the link, which is deleted next.
func (c Client) Release(_ context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) error {
	m := request(dhcpv4.MessageTypeRelease, l, a, have)
	m.ClientIPAddr = address(have).AsSlice()
	m.Options[optServer] = have.Server.Addr.AsSlice()
	return c.tell(l, m, have.Server.Addr, have)
}

// Decline implements dhcp.Protocol.
func (c Client) Decline(_ context.Context, l dhcp.Link, a dhcp.Ask, have *dhcp.Lease) error {
	m := request(dhcpv4.MessageTypeDecline, l, a, have)
	m.Options[optAddress] = address(have).AsSlice()
	m.Options[optServer] = have.Server.Addr.AsSlice()
	return c.tell(l, m, everywhere(), have)
}

func (c Client) tell(l dhcp.Link, m *dhcpv4.DHCPv4, to netip.Addr, have *dhcp.Lease) error {
	s, err := c.open(l)
	if err != nil {
		return err
	}
	defer s.Close()
	s.known = have
	if !to.IsValid() {
		to = everywhere()
	}
	return s.sendFrame(m, to)
}

func address(l *dhcp.Lease) netip.Addr {
	if len(l.Addresses) == 0 {
		return netip.IPv4Unspecified()
	}
	return l.Addresses[0].Prefix.Addr()
}

func (c Client) first() time.Duration {
	if c.First > 0 {
		return c.First
	}
	return time.Second
}

func (c Client) max() time.Duration {
	if c.Max > 0 {
		return max(c.Max, c.first())
	}
	return 16 * time.Second
}

// everywhere is no server's address, and goes to all.
func everywhere() netip.Addr { return netip.Addr{} }

// A session is an open socket on a link.
type session struct {
	*packet.UDP4Conn
	c     Client
	link  dhcp.Link
	known *dhcp.Lease // what is held already; nil: nothing
	udp   net.Conn    // once there was need of it; it stays open, or the kernel would send the server an ICMP error
	buf   [9216]byte
}

func (s *session) Close() {
	s.UDP4Conn.Close()
	if s.udp != nil {
		s.udp.Close()
	}
}

func (c Client) open(l dhcp.Link) (*session, error) {
	p, err := packet.ListenUDP4(l.NS, l.Index, clientPort)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", l.Name, err)
	}
	return &session{UDP4Conn: p, c: c, link: l}, nil
}

// An answer is an OFFER, ACK or NAK to what was asked.
type answer struct {
	lease  *dhcp.Lease
	nak    bool
	server netip.Addr
	said   string
}

func (a *answer) addr() netip.Addr { return address(a.lease) }
func (a *answer) refusal() error {
	return fmt.Errorf("%w (server %v: %q)", dhcp.ErrRefused, a.server, a.said)
}

// exchange sends m until it is answered: by a message of the type that is wanted, or by NAK where that is an ACK. After
// that many tries, where that is not zero, or the end of ctx it is ErrNoServer, with what was wrong with what did
// answer.
func (s *session) exchange(ctx context.Context, tries int, m *dhcpv4.DHCPv4, to netip.Addr,
	want dhcpv4.MessageType) (*answer, error) {
	pause, began := s.c.first(), time.Now()
	var odd error
	for try := 1; ; try++ {
		m.NumSeconds = uint16(min(time.Since(began)/time.Second, 0xffff))
		asked := time.Now()
		if err := s.send(m, to); err != nil {
			return nil, err
		}
		got, err := s.await(ctx, asked.Add(jitter(pause)), m, want)
		switch {
		case err == nil:
			if got.lease != nil {
				got.lease.Asked = asked
			}
			return got, nil
		case !errors.Is(err, dhcp.ErrNoServer):
			return nil, err
		}
		odd = errors.Join(err, odd)
		if try == tries || ctx.Err() != nil {
			return nil, noServer(s.link.Name, odd)
		}
		pause = min(2*pause, s.c.max())
	}
}

func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }

// noServer says once that no server answered, and once of each odd answer what was odd.
func noServer(link string, odd error) error {
	var o *oddAnswer
	if errors.As(odd, &o) {
		return fmt.Errorf("link %s: %w with a lease: %w", link, dhcp.ErrNoServer, o)
	}
	return fmt.Errorf("link %s: %w", link, dhcp.ErrNoServer)
}

// An oddAnswer is one to our question that cannot be used.
type oddAnswer struct {
	server netip.Addr
	err    error
}

func (o *oddAnswer) Error() string { return fmt.Sprintf("server %v: %v", o.server, o.err) }

// await reads until the answer, which anything may be on the link beside.
func (s *session) await(ctx context.Context, deadline time.Time, m *dhcpv4.DHCPv4,
	want dhcpv4.MessageType) (*answer, error) {
	var odd, nak error
	var refused *answer
	for {
		n, from, unsummed, err := s.Receive(ctx, deadline, s.buf[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if refused != nil {
				return refused, nil
			}
			return nil, errors.Join(dhcp.ErrNoServer, odd, nak)
		case err != nil:
			return nil, fmt.Errorf("link %s: %w", s.link.Name, err)
		}
		source, payload, err := unframe(s.buf[:n], unsummed)
		if err != nil {
			continue
		}
		r, err := parse(payload, m)
		if err != nil {
			slog.Debug("a DHCP message was passed over", "link", s.link.Name, "from", source, "reason", err)
			continue
		}
		server := source
		if id := addrs(r.Options[optServer]); len(id) == 1 {
			server = id[0]
		}
		if asked := addrs(m.Options[optServer]); len(asked) == 1 && server != asked[0] {
			continue // of a server whose offer was not taken
		}
		switch typ := r.MessageType(); {
		case typ == dhcpv4.MessageTypeNak && want == dhcpv4.MessageTypeAck:
			refused = &answer{nak: true, server: server, said: said(r)}
			if s.known == nil || server == s.known.Server.Addr || !s.known.Server.Addr.IsValid() {
				return refused, nil
			}
			// One that does not know the lease speaks before its own server does; that one has until the deadline.
			continue
		case typ != want:
			continue
		}
		l, err := lease(r, s.link)
		if err == nil && want == dhcpv4.MessageTypeOffer && !l.Server.Addr.IsValid() {
			err = errors.New("the answer has no server identifier (option 54)")
		}
		if err != nil {
			odd = &oddAnswer{source, err}
			continue
		}
		if !l.Server.Addr.IsValid() {
			l.Server.Addr = source
		}
		l.Server.MAC = from.String()
		return &answer{lease: l, server: server}, nil
	}
}

// pause waits, and reads away what comes.
func (s *session) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return noServer(s.link.Name, nil)
	}
}

// send sends a message to a server that the kernel finds the way to, or to all.
func (s *session) send(m *dhcpv4.DHCPv4, to netip.Addr) error {
	own, _ := netip.AddrFromSlice(m.ClientIPAddr.To4())
	if to.IsValid() && own.IsValid() && !own.IsUnspecified() {
		var err error
		if s.udp == nil {
			s.udp, err = packet.DialUDP(s.link.NS, s.link.Name, netip.AddrPortFrom(own, clientPort),
				netip.AddrPortFrom(to, serverPort))
		}
		if err == nil {
			_, err = s.udp.Write(m.ToBytes())
		}
		if err == nil {
			return nil
		}
		// The address is not on the link, or a program in the container has the port.
		slog.Debug("a DHCP message goes without the kernel's help", "link", s.link.Name, "reason", err)
	}
	return s.sendFrame(m, to)
}

// sendFrame sends a message in a frame of its own: to the server's, or the router's, link address where that is known.
func (s *session) sendFrame(m *dhcpv4.DHCPv4, to netip.Addr) error {
	from, _ := netip.AddrFromSlice(m.ClientIPAddr.To4())
	mac := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	dst := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	if to.IsValid() {
		dst = to
		if s.known != nil {
			if known, err := net.ParseMAC(s.known.Server.MAC); err == nil {
				mac = known
			}
		}
	}
	if err := s.Send(frame(from, dst, m.ToBytes()), mac); err != nil {
		return fmt.Errorf("link %s: %w", s.link.Name, err)
	}
	return nil
}
