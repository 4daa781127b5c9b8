package nameserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/sockdiag"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const dnsPort = 53

// Of connections: how many there may be, in all and of one client, how long the first question may take, and the next
// one. Who is silent for longer is cut off.
const (
	mostConns       = 512
	mostConnsOfOne  = 16
	firstQuestion   = 2 * time.Second
	nextQuestion    = 5 * time.Second
	questionsOfConn = 1000
)

// A listener is the two sockets of an address.
type listener struct{ udp, tcp *dns.Server }

func (l *listener) close() {
	l.udp.PacketConn.Close()
	l.tcp.Listener.Close()
}

// listen opens the sockets of an address, also of one that the host does not have yet, or has no longer: it comes
// back with its link, and the sockets with it.
func (s *Server) listen(a netip.Addr) (*listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1); a.Is6() {
				err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
			}
		}), err)
	}}
	at := netip.AddrPortFrom(a, dnsPort).String()
	p, err := lc.ListenPacket(context.Background(), "udp", at)
	if err != nil {
		return nil, s.taken(err, kernel.UDP, a)
	}
	receiveBuffer(p.(*net.UDPConn))
	t, err := lc.Listen(context.Background(), "tcp", at)
	if err != nil {
		p.Close()
		return nil, s.taken(err, kernel.TCP, a)
	}
	l := &listener{
		udp: &dns.Server{PacketConn: p, Handler: s, UDPSize: 4096},
		tcp: &dns.Server{Listener: limited{t, &s.conns}, Handler: s, MaxTCPQueries: questionsOfConn,
			ReadTimeout: firstQuestion, WriteTimeout: firstQuestion,
			IdleTimeout: func() time.Duration { return nextQuestion }},
	}
	go l.udp.ActivateAndServe() // both end when their socket is closed
	go l.tcp.ActivateAndServe()
	return l, nil
}

// udpQueue is how many bytes of questions wait while the server is not running. Each takes about 1 KiB of it: the
// kernel's own 208 KiB are a burst of one client.
const udpQueue = 2 << 20

// receiveBuffer makes the queue longer, past net.core.rmem_max where that is allowed.
func receiveBuffer(c *net.UDPConn) {
	if raw, err := c.SyscallConn(); err == nil {
		var forced error
		if err := raw.Control(func(fd uintptr) {
			forced = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpQueue)
		}); err == nil && forced == nil {
			return
		}
	}
	c.SetReadBuffer(udpQueue)
}

// taken says who has the port.
func (s *Server) taken(err error, proto byte, a netip.Addr) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	if others := s.others(proto, a); others != "" {
		return fmt.Errorf("%w: %s", err, others)
	}
	return err
}

// others are the programs that take what comes to port 53 of an address.
func (s *Server) others(proto byte, a netip.Addr) string {
	ns, err := kernel.Open("")
	if err != nil {
		return ""
	}
	defer ns.Close()
	all, err := sockdiag.Listeners(ns, proto, dnsPort)
	if err != nil {
		return ""
	}
	var said []string
	for _, l := range all {
		if l.Takes(a) {
			said = append(said, fmt.Sprintf("%s listens on %v; have it listen on addresses of its own",
				s.holder(l.Inode), l.At))
		}
	}
	return strings.Join(said, "; ")
}

// adjust listens on what the records name, and on nothing else. The error is of each address that it cannot listen on.
func (s *Server) adjust() {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[netip.Addr]bool{}
	for _, a := range s.index.listens("") {
		want[a] = true
		if s.listeners[a] != nil {
			continue
		}
		l, err := s.listen(a)
		if err == nil {
			s.listeners[a] = l
			s.log.Info("listens", "address", a)
		} else if was := s.failed[a]; was == nil || was.Error() != err.Error() {
			s.log.Error("cannot listen", "address", a, "error", err)
		}
		if s.failed[a] = err; err == nil {
			delete(s.failed, a)
		}
	}
	for a, l := range s.listeners {
		if !want[a] {
			l.close()
			delete(s.listeners, a)
		}
	}
	for a := range s.failed {
		if !want[a] {
			delete(s.failed, a)
		}
	}
}

// deaf is why the server does not listen on addresses of a network.
func (s *Server) deaf(network string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, a := range s.index.listens(network) {
		if err := s.failed[a]; err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
