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

	"github.com/fairlead-cni/fairlead/internal/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const dnsPort = 53

// Limits for connections: their number, in total and per client (see shares); the time until the first query, and
// until the next one. Then the server closes them.
const (
	mostConns       = 512
	mostConnsOfOne  = 16
	firstQuestion   = 2 * time.Second
	nextQuestion    = 5 * time.Second
	questionsOfConn = 1000
)

// listener is the two sockets of an address.
type listener struct{ udp, tcp *dns.Server }

func (l *listener) close() {
	l.udp.PacketConn.Close()
	l.tcp.Listener.Close()
}

// listen opens the sockets of an address. The host may lack the address: it comes back with its link, and the
// sockets keep working.
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
	of := func(client netip.Addr) string { return s.index.network(a, client) }
	l := &listener{
		udp: &dns.Server{PacketConn: p, Handler: s, UDPSize: 4096},
		tcp: &dns.Server{Listener: limited{t, s.conns, of}, Handler: s, MaxTCPQueries: questionsOfConn,
			ReadTimeout: firstQuestion, WriteTimeout: firstQuestion,
			IdleTimeout: func() time.Duration { return nextQuestion }},
	}
	go s.serve(a, l, l.udp)
	go s.serve(a, l, l.tcp)
	return l, nil
}

// serve answers on a socket until it is closed. If it fails before, the address gets new sockets.
func (s *Server) serve(a netip.Addr, l *listener, on *dns.Server) {
	err := on.ActivateAndServe()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listeners[a] != l {
		return // it was closed
	}
	s.log.Error("stopped to listen", "address", a, "error", err)
	l.close()
	delete(s.listeners, a)
	s.failed[a] = fmt.Errorf("port %d of %v: %w", dnsPort, a, err)
}

// udpQueue is the size of the receive buffer in bytes, for queries that wait while the server does not run. A query
// takes about 1 KiB, and one client's burst fills the kernel's default of 208 KiB.
const udpQueue = 2 << 20

// receiveBuffer enlarges the receive buffer, beyond net.core.rmem_max if the server may do that.
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

// taken adds to an error which program has the port.
func (s *Server) taken(err error, proto byte, a netip.Addr) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	if others := s.others(proto, a); others != "" {
		return fmt.Errorf("%w: %s", err, others)
	}
	return err
}

// others returns the programs that receive the packets for port 53 of an address.
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
			said = append(said, fmt.Sprintf("%s listens on %v; let it listen only on addresses of its own",
				s.holder(l.Inode), l.At))
		}
	}
	return strings.Join(said, "; ")
}

// adjust listens on the addresses of the records, and closes all other sockets. failed keeps the error of each
// address.
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

// deaf returns why the server does not listen on addresses of a network, or nil.
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
