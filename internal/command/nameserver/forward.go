package nameserver

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/miekg/dns"
)

// Limits for a forwarded query: its total time, which is as long as resolvers wait; the time before the next server
// is asked as well; and the number of queries in progress, in total and per client (see shares).
const (
	forwardTime    = 5 * time.Second
	nextServer     = 800 * time.Millisecond
	mostForwards   = 1024
	mostOfAClient  = 100
	mostUpstreams  = 8
	resolvConfSize = 1 << 20
)

// forward asks other servers, each some time after the one before, and returns the first good answer. M is the reply
// so far.
func (s *Server) forward(m, q *dns.Msg, scope scope, client netip.Addr) *dns.Msg {
	m.Rcode = dns.RcodeServerFailure
	upstream, network := scope.upstream, scope.zones[0].network
	if len(upstream) == 0 {
		upstream = s.resolvers.get()
	}
	own := s.index.listens("")
	upstream = slices.DeleteFunc(slices.Clone(upstream), func(a netip.Addr) bool {
		return slices.Contains(own, a.Unmap())
	})
	if len(upstream) == 0 || !s.forwards.take(network, client) {
		return m
	}
	defer s.forwards.give(network, client)
	ctx, cancel := context.WithTimeout(s.ctx, forwardTime)
	defer cancel()
	answers := make(chan *dns.Msg, mostUpstreams)
	next := time.NewTimer(0)
	defer next.Stop()
	asked, failed := 0, 0
	for servers := upstream[:min(len(upstream), mostUpstreams)]; ; {
		select {
		case <-ctx.Done():
			return m
		case <-next.C:
			if asked < len(servers) {
				at := servers[asked]
				asked++
				go func() { answers <- exchange(ctx, q, at) }()
				next.Reset(nextServer)
			}
		case a := <-answers:
			good := a != nil && a.Rcode != dns.RcodeServerFailure && a.Rcode != dns.RcodeRefused
			if a != nil {
				a.Id, a.Question, a.RecursionAvailable = q.Id, q.Question, true
				m = a
			}
			if failed++; good || failed == len(servers) {
				return m
			}
			next.Reset(0)
		}
	}
}

// exchange asks one server, by UDP, and by TCP if the answer is truncated. It returns nil if there is no answer.
func exchange(ctx context.Context, q *dns.Msg, at netip.Addr) *dns.Msg {
	m := q.Copy()
	m.Id = dns.Id()
	client := q.IsEdns0()
	if client == nil {
		m.SetEdns0(udpSize, false)
	} else {
		m.IsEdns0().SetUDPSize(udpSize)
	}
	addr := netip.AddrPortFrom(at, dnsPort).String()
	a := ask(ctx, "udp", m, addr)
	if a != nil && a.Truncated {
		if whole := ask(ctx, "tcp", m, addr); whole != nil {
			a = whole
		}
	}
	if a != nil && client == nil { // a client that sent no EDNS0 does not understand it
		a.Extra = slices.DeleteFunc(a.Extra, func(r dns.RR) bool { return r.Header().Rrtype == dns.TypeOPT })
	}
	return a
}

func ask(ctx context.Context, network string, m *dns.Msg, addr string) *dns.Msg {
	c := dns.Client{Net: network, UDPSize: udpSize, Timeout: forwardTime}
	a, _, err := c.ExchangeContext(ctx, m, addr)
	if err != nil || !a.Response || len(a.Question) != 1 ||
		!strings.EqualFold(a.Question[0].Name, m.Question[0].Name) ||
		a.Question[0].Qtype != m.Question[0].Qtype {
		return nil
	}
	return a
}

// resolvers are the host's name servers, from resolv.conf(5). The file is read again after a change.
type resolvers struct {
	path string
	mu   sync.Mutex
	was  fs.FileInfo
	all  []netip.Addr
}

func (r *resolvers) get() []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	st, err := os.Stat(r.path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			r.was, r.all = nil, nil
		}
		return r.all
	}
	if r.was != nil && os.SameFile(st, r.was) && st.ModTime().Equal(r.was.ModTime()) && st.Size() == r.was.Size() {
		return r.all
	}
	b, err := plainfile.ReadLinked(r.path, resolvConfSize)
	if err != nil {
		return r.all
	}
	r.was, r.all = st, nil
	for lines := bufio.NewScanner(strings.NewReader(string(b))); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			r.all = append(r.all, a)
		}
	}
	return r.all
}
