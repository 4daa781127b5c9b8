package v6

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

const (
	clientPort = 546
	serverPort = 547
)

// everyone are all servers and relays on the link.
func everyone() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 13: 1, 15: 2}), serverPort)
}

// pace is how often a message is sent again (RFC 8415, 15). Tries of zero is until the end of the context.
type pace struct {
	first, max time.Duration
	tries      int
}

// pace is that of a type of message, 7.6 of the RFC. Who waits for an answer is a container, or the DEL of one, so that
// the end comes earlier than there.
func (c Client) pace(typ dhcpv6.MessageType) pace {
	p := pace{first: time.Second, max: 30 * time.Second}
	switch typ {
	case dhcpv6.MessageTypeRequest:
		p.tries = 4
	case dhcpv6.MessageTypeConfirm:
		p.max, p.tries = 4*time.Second, 4
	case dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		p.first, p.max = 10*time.Second, 10*time.Minute
	case dhcpv6.MessageTypeInformationRequest:
		p.tries = 2
	case dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline:
		p.tries = 3
	}
	if c.First > 0 {
		p.first = c.First
	}
	if c.Max > 0 {
		p.max = max(c.Max, p.first)
	}
	return p
}

// A session is an open socket on a link.
type session struct {
	*packet.Inet6Conn
	c    Client
	link dhcp.Link
	self netip.Addr
	buf  [65536]byte
}

// open opens one. The link has IPv6 since the lease was got, and its settings are not touched again: they may be the
// container's own by now.
func (c Client) open(ctx context.Context, l dhcp.Link) (*session, error) {
	self, err := linkLocal(ctx, l)
	if err != nil {
		return nil, err
	}
	conn, err := packet.ListenUDP6(l.NS, l.Index, l.Name, netip.AddrPortFrom(self, clientPort))
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", l.Name, err)
	}
	return &session{Inet6Conn: conn, c: c, link: l, self: self}, nil
}

// An answer is a message from a server, or from the relay that it is behind.
type answer struct {
	*dhcpv6.Message
	from netip.Addr
}

// An oddAnswer is one to our question that cannot be used.
type oddAnswer struct {
	server netip.Addr
	err    error
}

func (o *oddAnswer) Error() string { return fmt.Sprintf("server %v: %v", o.server, o.err) }
func (o *oddAnswer) Unwrap() error { return o.err }

// noServer says once that no server answered, and of the last odd answer what was odd.
func noServer(link string, odd error) error {
	if odd != nil {
		return fmt.Errorf("link %s: %w with a lease: %w", link, dhcp.ErrNoServer, odd)
	}
	return fmt.Errorf("link %s: %w", link, dhcp.ErrNoServer)
}

// decides reports whether an error of an answer is the end of the exchange: the server understood, and said no.
func decides(err error) bool {
	return errors.Is(err, dhcp.ErrRefused) || errors.Is(err, dhcp.ErrEmpty)
}

// exchange sends m until take has had an answer that it wants, which is nil, or one that decides. Asked is when that
// was last sent. Settle is asked each time that an answer has not come in time; what it returns ends the exchange if it
// is done. After the tries, or at the end of ctx, it is ErrNoServer.
func (s *session) exchange(ctx context.Context, m *dhcpv6.Message, take func(*answer) error,
	settle func() (done bool, err error)) (asked time.Time, err error) {
	p := s.c.pace(m.MessageType)
	pause := jitter(p.first, m.MessageType == dhcpv6.MessageTypeSolicit)
	began := time.Now()
	var odd error
	for try := 1; ; try++ {
		asked = time.Now()
		// In hundredths of a second since the first time.
		put(m, dhcpv6.OptionElapsedTime, binary.BigEndian.AppendUint16(nil,
			uint16(min(asked.Sub(began)/(10*time.Millisecond), 0xffff))))
		if err := s.Send(m.ToBytes(), everyone()); err != nil {
			return asked, fmt.Errorf("link %s: %w", s.link.Name, err)
		}
		err := s.await(ctx, asked.Add(pause), m, take)
		switch {
		case err == nil || decides(err):
			return asked, err
		case !errors.Is(err, dhcp.ErrNoServer):
			return asked, err
		}
		var o *oddAnswer
		if errors.As(err, &o) {
			odd = o
		}
		if settle != nil {
			if done, err := settle(); done {
				return asked, err
			}
		}
		if try == p.tries || ctx.Err() != nil {
			return asked, noServer(s.link.Name, odd)
		}
		pause = min(pause+jitter(pause, false), jitter(p.max, false))
	}
}

// jitter is d, up to a tenth longer or shorter by chance, or only longer: who hears many SOLICITs has them spread.
func jitter(d time.Duration, longer bool) time.Duration {
	tenth := max(d/10, 1)
	if longer {
		return d + rand.N(tenth) + 1
	}
	return d - tenth + rand.N(2*tenth)
}

// commits reports whether r is the end of what SOLICIT began.
func commits(r, m *dhcpv6.Message) bool {
	return m.MessageType == dhcpv6.MessageTypeSolicit && r.MessageType == dhcpv6.MessageTypeReply &&
		option(m, dhcpv6.OptionRapidCommit) != nil && option(r, dhcpv6.OptionRapidCommit) != nil
}

// await reads until an answer that take wants, or that decides. It is ErrNoServer at the deadline.
func (s *session) await(ctx context.Context, deadline time.Time, m *dhcpv6.Message, take func(*answer) error) error {
	want := dhcpv6.MessageTypeReply
	if m.MessageType == dhcpv6.MessageTypeSolicit {
		want = dhcpv6.MessageTypeAdvertise
	}
	var odd error
	for {
		n, from, _, err := s.Receive(ctx, deadline, s.buf[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errors.Join(dhcp.ErrNoServer, odd)
		case err != nil:
			return fmt.Errorf("link %s: %w", s.link.Name, err)
		}
		r, err := parse(s.buf[:n], m)
		if err == nil && r.MessageType != want && !commits(r, m) {
			err = errors.New("an answer to another question")
		}
		if err != nil {
			slog.Debug("a DHCPv6 message was passed over", "link", s.link.Name, "from", from.Addr(), "reason", err)
			continue
		}
		switch err := take(&answer{r, from.Addr()}); {
		case err == nil:
			return nil
		case err == errMore:
		case decides(err):
			return &oddAnswer{from.Addr(), err}
		default:
			odd = &oddAnswer{from.Addr(), err}
		}
	}
}
