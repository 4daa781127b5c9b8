package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// sockets are what a Prober sends and receives with: for each family two at the node's own address among its
// containers, for echoes and for datagrams, and one at its address outside.
type sockets struct {
	ns      *kernel.NS
	port    uint16
	ctx     context.Context
	arrived chan arrival

	inside, within, outside [families]socket
}

// A socket is open if conn is not nil.
type socket struct {
	at   netip.Addr
	conn io.Closer
}

// An arrival is an echo or a datagram that a socket received. One of them is not nil.
type arrival struct {
	from     netip.Addr
	reply    bool
	bytes    int // of the packet
	link     int // index
	echo     *echoData
	inner    *innerData
	datagram *datagram
	sealed   []byte
}

func (a arrival) give(t *table, now time.Time) {
	switch {
	case a.echo != nil:
		t.receiveEcho(now, a.from, a.reply, a.bytes, *a.echo)
	case a.inner != nil:
		t.receiveInner(now, a.from, *a.inner, a.link)
	case a.sealed != nil:
		t.receiveSealed(a.from, a.sealed)
	default:
		t.receiveDatagram(now, a.from, *a.datagram)
	}
}

// open opens the sockets of a setting, and closes others.
func (s *sockets) open(want setting) error {
	var inside, outside [families]netip.Addr
	for _, a := range want.own {
		inside[familyOf(a)] = a
	}
	for _, p := range want.peers {
		outside[familyOf(p.Local)] = p.Local
	}
	var errs []error
	for f := range families {
		errs = append(errs, s.inside[f].move(inside[f], s.listenEcho), s.within[f].move(inside[f], s.listenInner),
			s.outside[f].move(outside[f], s.listenOutside))
	}
	return errors.Join(errs...)
}

// move opens a socket at an address, in the place of the one that is at another.
func (s *socket) move(at netip.Addr, listen func(netip.Addr) (io.Closer, error)) (err error) {
	if s.conn != nil && s.at == at {
		return nil
	}
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
	s.at = at
	if !at.IsValid() {
		return nil
	}
	s.conn, err = listen(at)
	return err
}

func (s *sockets) close() {
	for _, all := range [][families]socket{s.inside, s.within, s.outside} {
		for _, one := range all {
			if one.conn != nil {
				one.conn.Close()
			}
		}
	}
}

func (s *sockets) listenEcho(at netip.Addr) (io.Closer, error) {
	c, err := packet.ListenEcho(s.ns, at)
	if err != nil {
		return nil, err
	}
	go s.read(func(buf []byte) (arrival, bool, error) {
		e, from, err := c.Receive(buf)
		data, ok := parseEcho(e.Data)
		return arrival{from: from, reply: e.Reply, bytes: len(e.Data) + packet.EchoOverhead(at), echo: &data}, ok, err
	})
	return c, nil
}

func (s *sockets) listenOutside(at netip.Addr) (io.Closer, error) {
	return s.listenUDP(at, func(a *arrival, data []byte) bool {
		if sealed, is := bytes.CutPrefix(data, sealedMagic()); is {
			a.sealed = bytes.Clone(sealed)
			return true
		}
		d, ok := parseDatagram(data)
		a.datagram = &d
		return ok
	})
}

func (s *sockets) listenInner(at netip.Addr) (io.Closer, error) {
	return s.listenUDP(at, func(a *arrival, data []byte) bool {
		d, ok := parseInner(data)
		a.inner = &d
		return ok
	})
}

// listenUDP receives what agents send to an address.
func (s *sockets) listenUDP(at netip.Addr, parse func(a *arrival, data []byte) (ok bool)) (io.Closer, error) {
	c, err := packet.ListenUDP(s.ns, netip.AddrPortFrom(at, s.port))
	if err != nil {
		return nil, err
	}
	oob := make([]byte, 128)
	go s.read(func(buf []byte) (arrival, bool, error) {
		n, oobn, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
		a := arrival{from: from.Addr().Unmap(), link: packet.ArrivedBy(oob[:max(oobn, 0)])}
		return a, err == nil && parse(&a, buf[:n]) && from.Port() == s.port, err
	})
	return c, nil
}

// read hands on what a socket receives, until it is closed. While the table has no time, the kernel drops.
func (s *sockets) read(receive func(buf []byte) (a arrival, ok bool, err error)) {
	buf := make([]byte, 1<<16)
	for {
		a, ok, err := receive(buf)
		var refused syscall.Errno // a former packet was
		if err != nil && !errors.As(err, &refused) {
			return // the socket is closed
		}
		if err != nil || !ok {
			continue
		}
		select {
		case s.arrived <- a:
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *sockets) echo(to netip.Addr, bytes int, e echoData) error {
	c, ok := s.inside[familyOf(to)].conn.(*packet.EchoConn)
	if !ok {
		return fmt.Errorf("no socket for %v", to)
	}
	return c.Send(to, packet.Echo{ID: uint16(s.port), Data: e.bytes(bytes - packet.EchoOverhead(to))})
}

func (s *sockets) datagram(local, to netip.Addr, d datagram) error {
	return s.send(local, to, d.bytes())
}

// send sends outside of the tunnel.
func (s *sockets) send(local, to netip.Addr, b []byte) error {
	out := s.outside[familyOf(to)]
	c, ok := out.conn.(*net.UDPConn)
	if !ok || out.at != local {
		return fmt.Errorf("no socket at UDP %v port %d", local, s.port)
	}
	_, err := c.WriteToUDPAddrPort(b, netip.AddrPortFrom(to, s.port))
	return err
}

func (s *sockets) inner(to netip.Addr, by Link, nonce uint64) error {
	in := s.within[familyOf(to)]
	c, ok := in.conn.(*net.UDPConn)
	if !ok {
		return fmt.Errorf("no socket for %v", to)
	}
	dst := netip.AddrPortFrom(to, s.port)
	if by.Index == 0 {
		_, err := c.WriteToUDPAddrPort(innerData{byRoute, nonce}.bytes(), dst)
		return err
	}
	mac, err := s.neighbour(by)
	if mac == nil || err != nil {
		return err // it is known soon: other packets go there
	}
	return packet.SendUDP(s.ns, by.Index, mac, netip.AddrPortFrom(in.at, s.port), dst,
		innerData{byLink, nonce}.bytes())
}

// neighbour returns the link-layer address of a next hop, or nil if the kernel does not know it.
func (s *sockets) neighbour(l Link) (net.HardwareAddr, error) {
	all, err := rtnl.NeighbourMessages(s.ns, rtnl.Family(l.Via), l.Index)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if n := m.Neighbour(); n.Addr == l.Via && n.State&rtnl.Failed == 0 && len(n.MAC) > 0 {
			return n.MAC, nil
		}
	}
	return nil, nil
}

var _ wire = (*sockets)(nil)
