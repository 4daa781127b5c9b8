package nameserver

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// udpSize is the largest answer by UDP, in bytes. It fits in a packet on every link, so that it is not fragmented
// (DNS flag day 2020).
const udpSize = 1232

// ServeDNS answers one query.
func (s *Server) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	tcp, client := false, netip.AddrPort{}
	switch a := w.RemoteAddr().(type) {
	case *net.TCPAddr:
		tcp, client = true, a.AddrPort()
	case *net.UDPAddr:
		client = a.AddrPort()
	}
	gateway, err := netip.ParseAddrPort(w.LocalAddr().String())
	if err != nil {
		return
	}
	m := s.answer(q, gateway.Addr(), client.Addr())
	if m == nil {
		return
	}
	size := dns.MaxMsgSize
	if !tcp {
		size = dns.MinMsgSize
		if o := q.IsEdns0(); o != nil {
			size = min(max(int(o.UDPSize()), dns.MinMsgSize), udpSize)
		}
	}
	m.Compress = true
	m.Truncate(size)
	_ = w.WriteMsg(m) // the client is gone
}

// answer returns the reply to a query that came to a gateway's address.
func (s *Server) answer(q *dns.Msg, gateway, client netip.Addr) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	if o := q.IsEdns0(); o != nil {
		m.SetEdns0(udpSize, o.Do())
		if o.Version() != 0 {
			m.Rcode = dns.RcodeBadVers
			return m
		}
	}
	scope, ok := s.index.scope(gateway, client)
	if !ok || len(q.Question) != 1 || q.Question[0].Qclass != dns.ClassINET {
		m.Rcode = dns.RcodeRefused
		return m
	}
	if s.own(m, scope) {
		return m
	}
	if !q.RecursionDesired {
		m.Rcode = dns.RcodeRefused
		return m
	}
	return s.forward(m, q, scope, client)
}

// own answers a query for names and addresses of containers, and reports whether it was one.
func (s *Server) own(m *dns.Msg, scope scope) bool {
	q := m.Question[0]
	header := func(t uint16) dns.RR_Header { return dns.RR_Header{Name: q.Name, Rrtype: t, Class: dns.ClassINET} }
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	if a, ok := reversed(name); ok {
		all := s.index.named(scope, a)
		for _, n := range all {
			if q.Qtype == dns.TypePTR || q.Qtype == dns.TypeANY {
				m.Answer = append(m.Answer, &dns.PTR{Hdr: header(dns.TypePTR), Ptr: n})
			}
		}
		m.Authoritative = len(all) > 0
		return m.Authoritative
	}
	addrs, found, mine := s.index.lookUp(scope, name)
	single := !strings.Contains(name, ".")
	address := q.Qtype == dns.TypeA || q.Qtype == dns.TypeAAAA
	if !found && (!mine || single && !address || name == "") {
		return false // a top-level domain may have other records
	}
	m.Authoritative = true
	switch {
	case !found && s.blind.Load():
		m.Authoritative, m.Rcode = false, dns.RcodeServerFailure
	case !found:
		m.Rcode = dns.RcodeNameError
	}
	for _, a := range addrs {
		any := q.Qtype == dns.TypeANY
		switch {
		case a.Is4() && (q.Qtype == dns.TypeA || any):
			m.Answer = append(m.Answer, &dns.A{Hdr: header(dns.TypeA), A: a.AsSlice()})
		case a.Is6() && (q.Qtype == dns.TypeAAAA || any):
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: header(dns.TypeAAAA), AAAA: a.AsSlice()})
		}
	}
	// Containers with the same alias take turns.
	rand.Shuffle(len(m.Answer), func(i, j int) { m.Answer[i], m.Answer[j] = m.Answer[j], m.Answer[i] })
	return true
}

// reversed returns the address that a name in in-addr.arpa or ip6.arpa stands for.
func reversed(name string) (a netip.Addr, ok bool) {
	if s, v4 := strings.CutSuffix(name, ".in-addr.arpa"); v4 {
		p := strings.Split(s, ".")
		if len(p) != 4 {
			return a, false
		}
		a, err := netip.ParseAddr(p[3] + "." + p[2] + "." + p[1] + "." + p[0])
		return a, err == nil
	}
	s, v6 := strings.CutSuffix(name, ".ip6.arpa")
	p := strings.Split(s, ".")
	if !v6 || len(p) != 32 {
		return a, false
	}
	var b strings.Builder
	for i := range p {
		if i > 0 && i%4 == 0 {
			b.WriteByte(':')
		}
		b.WriteString(p[31-i])
	}
	a, err := netip.ParseAddr(b.String())
	return a, err == nil
}
