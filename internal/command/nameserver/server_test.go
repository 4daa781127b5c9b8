package nameserver

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/record"
	"github.com/fairlead-cni/fairlead/resource/names"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/miekg/dns"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveVar); dir != "" {
		if err := serveHere(record.Store{Dir: dir}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	nstest.Main(m)
}

// A rig is a host with a gateway, 10.1.0.1 and fd00:1::1, a container behind it, 10.1.0.2 and fd00:1::2, and a server.
type rig struct {
	*testing.T
	memory record.Store
	netns  string
	log    *logged
	cancel func()
	done   chan error
}

// logged is what the server has logged.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const gw4, gw6, resolvConf = "10.1.0.1", "fd00:1::1", "/run/resolv.conf"

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, memory: record.Store{Dir: filepath.Join(t.TempDir(), "memory")}, netns: nstest.NewNS(t),
		log: &logged{}}
	r.link()
	t.Cleanup(func() { nstest.Run(t, "sh", "-c", "ip link del gw0") })
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) link() {
	r.Helper()
	name := strings.TrimPrefix(r.netns, "/run/netns/")
	nstest.Run(r, "sh", "-ec", "ip link set lo up; ip link add gw0 type veth peer name eth0 netns "+name+
		"; ip addr add 10.1.0.1/16 dev gw0; ip addr add fd00:1::1/64 dev gw0 nodad; ip link set gw0 up")
	nstest.RunIn(r, r.netns, "sh", "-ec", `ip link set lo up; ip addr add 10.1.0.2/16 dev eth0; ip addr add fd00:1::2/64 dev eth0 nodad; ip link set eth0 up
		ip route add default via 10.1.0.1; ip -6 route add default via fd00:1::1`)
}

func (r *rig) start() {
	r.Helper()
	if err := os.MkdirAll(filepath.Dir(Socket(r.memory)), 0o700); err != nil {
		r.Fatal(err)
	}
	l, err := net.Listen("unix", Socket(r.memory))
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		r.done <- Serve(ctx, Settings{Memory: r.memory, ResolvConf: resolvConf,
			Log:    slog.New(slog.NewTextHandler(r.log, nil)),
			Holder: func(uint32) string { return "process other (PID 1)" }}, l, func() { close(ready) })
	}()
	select {
	case <-ready:
	case err := <-r.done:
		r.Fatal(err)
	}
}

func (r *rig) stop() error {
	if r.done == nil {
		return nil
	}
	r.cancel()
	err := <-r.done
	r.done = nil
	return err
}

// record writes a record of network net, and tells the server where told is set.
func (r *rig) record(told bool, id string, rec names.Record) {
	r.Helper()
	o := spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"}
	rec.Network, rec.ContainerID, rec.IfName = o.Network, o.ContainerID, o.IfName
	if rec.Names == nil {
		rec.Names = []string{id}
	}
	if rec.Gateways == nil {
		rec.Gateways = []netip.Addr{netip.MustParseAddr(gw4), netip.MustParseAddr(gw6)}
	}
	if err := r.memory.Put(names.Kept, o, rec); err != nil {
		r.Fatal(err)
	}
	if told {
		if err := r.tell(id); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *rig) tell(id string) error {
	o := spec.Owner{Network: "net", ContainerID: id, IfName: "eth0"}
	return names.Ask(r.Context(), Socket(r.memory),
		names.Question{Network: "net", Record: names.RecordOf("net", identity.OwnerHash(o))})
}

func addrs(list ...string) (all []netip.Prefix) {
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// ask asks from the container.
func (r *rig) ask(network, gateway string, m *dns.Msg) (*dns.Msg, error) {
	var a *dns.Msg
	err := nstest.In(r.netns, func() (err error) {
		c := dns.Client{Net: network, Timeout: 5 * time.Second}
		for end := nstest.Deadline(r); ; { // a datagram may be lost: a resolver asks again, too
			a, _, err = c.Exchange(m, net.JoinHostPort(gateway, "53"))
			if err == nil || !os.IsTimeout(err) || time.Now().After(end) {
				return err
			}
		}
	})
	return a, err
}

// answer is the answer to a question for a name, in a line: the code, where it is no success, and the values.
func (r *rig) answer(network, name string, typ uint16) string {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), typ)
	a, err := r.ask(network, gw4, m)
	if err != nil {
		return err.Error()
	}
	return said(a)
}

func said(a *dns.Msg) string {
	var words []string
	if a.Rcode != dns.RcodeSuccess {
		words = append(words, dns.RcodeToString[a.Rcode])
	}
	for _, rr := range a.Answer {
		words = append(words, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	return strings.Join(words, " ")
}

func (r *rig) until(what string, is func() bool) {
	r.Helper()
	for limit := nstest.Deadline(r); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			r.Fatalf("waited for %s", what)
		}
	}
}

// upstream is a name server on an address of the host's loopback. It counts what it is asked by UDP and TCP.
type upstream struct{ udp, tcp atomic.Int32 }

func newUpstream(t *testing.T, addr string, handle func(w dns.ResponseWriter, q, m *dns.Msg)) *upstream {
	t.Helper()
	u := new(upstream)
	p, err := net.ListenPacket("udp", addr+":53")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", addr+":53")
	if err != nil {
		t.Fatal(err)
	}
	h := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if _, tcp := w.RemoteAddr().(*net.TCPAddr); tcp {
			u.tcp.Add(1)
		} else {
			u.udp.Add(1)
		}
		m := new(dns.Msg)
		m.SetReply(q)
		handle(w, q, m)
	})
	go (&dns.Server{PacketConn: p, Handler: h}).ActivateAndServe()
	go (&dns.Server{Listener: l, Handler: h}).ActivateAndServe()
	t.Cleanup(func() { p.Close(); l.Close() })
	return u
}

// says answers each question with an address.
func says(addr string) func(w dns.ResponseWriter, q, m *dns.Msg) {
	return func(w dns.ResponseWriter, q, m *dns.Msg) {
		m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA,
			Class: dns.ClassINET}, A: net.ParseIP(addr)})
		w.WriteMsg(m)
	}
}

func resolv(t *testing.T, servers ...string) {
	t.Helper()
	var b strings.Builder
	for _, s := range servers {
		fmt.Fprintln(&b, "nameserver", s)
	}
	if err := os.WriteFile(resolvConf+".new", []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(resolvConf+".new", resolvConf); err != nil {
		t.Fatal(err)
	}
}

// Other names are asked of the host's servers, by UDP and TCP; the file that names them is read again when it changes;
// a server that is silent, or fails, has the next one asked; and the server never asks itself.
func TestForward(t *testing.T) {
	r := newRig(t)
	one := newUpstream(t, "127.0.0.2", says("192.0.2.1"))
	newUpstream(t, "127.0.0.3", says("192.0.2.2"))
	fails := newUpstream(t, "127.0.0.4", func(w dns.ResponseWriter, q, m *dns.Msg) {
		m.Rcode = dns.RcodeServerFailure
		w.WriteMsg(m)
	})
	newUpstream(t, "127.0.0.5", func(dns.ResponseWriter, *dns.Msg, *dns.Msg) {})
	newUpstream(t, "127.0.0.6", func(w dns.ResponseWriter, q, m *dns.Msg) {
		m.Rcode = dns.RcodeRefused
		w.WriteMsg(m)
	})
	r.record(true, "c1", names.Record{Addrs: addrs("10.1.0.2/16", "fd00:1::2/64")})
	for i, tt := range []struct {
		servers []string
		want    string
	}{
		{nil, "SERVFAIL"}, // no file
		{[]string{"127.0.0.2"}, "192.0.2.1"},
		{[]string{"127.0.0.3"}, "192.0.2.2"},
		{[]string{"no-address", "127.0.0.4", "127.0.0.2"}, "192.0.2.1"},
		{[]string{"127.0.0.5", "127.0.0.3"}, "192.0.2.2"},
		{[]string{"127.0.0.9", "127.0.0.3"}, "192.0.2.2"}, // nobody listens
		{[]string{"127.0.0.6", "127.0.0.3"}, "192.0.2.2"},
		{[]string{"127.0.0.6"}, "REFUSED"},
		{[]string{"127.0.0.4"}, "SERVFAIL"},
		{[]string{gw4, gw6}, "SERVFAIL"},
		{[]string{gw4, "127.0.0.2"}, "192.0.2.1"},
		{[]string{}, "SERVFAIL"},
	} {
		if tt.servers != nil {
			resolv(t, tt.servers...)
		}
		for _, network := range []string{"udp", "tcp"} {
			if got := r.answer(network, "www.example.com", dns.TypeA); got != tt.want {
				t.Errorf("%d: by %s with %v: %q, want %q", i, network, tt.servers, got, tt.want)
			}
		}
	}
	resolv(t, "127.0.0.2")
	before := one.udp.Load()
	for _, own := range []string{"c1", "C1.", "nobody"} { // which nobody else is asked for
		r.answer("udp", own, dns.TypeA)
	}
	if got := one.udp.Load(); got != before {
		t.Errorf("%d names of containers were asked of the host's servers", got-before)
	}
	if got := r.answer("udp", "com", dns.TypeNS); got == "NXDOMAIN" || one.udp.Load() == before {
		t.Errorf("the servers of a top-level domain: %q", got)
	}

	// Nor does it ask itself by an IPv4 address in IPv6's notation: it would again and again.
	resolv(t, "::ffff:"+gw4, "127.0.0.4")
	before = fails.udp.Load()
	if got := r.answer("udp", "www.example.com", dns.TypeA); got != "SERVFAIL" || fails.udp.Load() != before+1 {
		t.Errorf("with its own address as %s: %q, and %d questions", "::ffff:"+gw4, got, fails.udp.Load()-before)
	}

	// A record's own servers come before the host's, for its container.
	r.record(true, "c1", names.Record{Addrs: addrs("10.1.0.2/16"),
		Upstream: []netip.Addr{netip.MustParseAddr("127.0.0.3")}})
	if got := r.answer("udp", "www.example.com", dns.TypeA); got != "192.0.2.2" {
		t.Errorf("with servers of its own: %q", got)
	}
}

// Long answers are cut for UDP and whole by TCP, from containers' names and from other servers; EDNS0 says how much may
// come.
func TestTruncation(t *testing.T) {
	r := newRig(t)
	many := func(n int) func(w dns.ResponseWriter, q, m *dns.Msg) {
		return func(w dns.ResponseWriter, q, m *dns.Msg) {
			for i := range n {
				m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA,
					Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, byte(i))})
			}
			m.Compress = true
			if o := q.IsEdns0(); o != nil {
				m.SetEdns0(1232, o.Do())
			}
			if _, tcp := w.RemoteAddr().(*net.TCPAddr); !tcp {
				m.Truncate(1232)
			}
			w.WriteMsg(m)
		}
	}
	u := newUpstream(t, "127.0.0.2", many(200))
	resolv(t, "127.0.0.2")
	r.record(true, "c1", names.Record{Addrs: addrs("10.1.0.2/16")})
	const shared = 100
	for i := range shared {
		r.record(i == shared-1, fmt.Sprint("s", i),
			names.Record{Names: []string{fmt.Sprint("s", i), "all"}, Addrs: addrs(fmt.Sprintf("10.1.2.%d/16", i))})
	}
	r.until("all records", func() bool { return strings.Count(r.answer("tcp", "all", dns.TypeA), "10.1.2.") == shared })
	for _, tt := range []struct {
		name, network string
		edns          uint16 // 0: none
		most, whole   int    // bytes, answers
	}{
		{"all", "udp", 0, 512, 0}, {"all", "udp", 1232, 1232, 0}, {"all", "udp", 4096, 1232, 0}, {"all", "udp", 100, 512, 0},
		{"all", "tcp", 0, 65535, shared}, {"www.example.com", "udp", 0, 512, 0}, {"www.example.com", "udp", 1232, 1232, 0},
		{"www.example.com", "tcp", 0, 65535, 200}, {"s1", "udp", 0, 512, 1},
	} {
		m := new(dns.Msg)
		m.SetQuestion(dns.Fqdn(tt.name), dns.TypeA)
		if tt.edns > 0 {
			m.SetEdns0(tt.edns, false)
		}
		a, err := r.ask(tt.network, gw4, m)
		if err != nil {
			t.Fatalf("%+v: %v", tt, err)
		}
		a.Compress = true
		if a.Truncated != (tt.whole == 0) || a.Len() > tt.most || tt.whole > 0 && len(a.Answer) != tt.whole ||
			(a.IsEdns0() != nil) != (tt.edns > 0) || len(a.Answer) == 0 {
			t.Errorf("%+v: TC %v, %d bytes, %d answers, OPT %v", tt, a.Truncated, a.Len(), len(a.Answer), a.IsEdns0())
		}
	}
	if u.tcp.Load() == 0 {
		t.Error("an answer that was cut was not asked for by TCP")
	}
	m := new(dns.Msg)
	m.SetQuestion("s1.", dns.TypeA)
	m.SetEdns0(1232, false)
	m.IsEdns0().SetVersion(1)
	if a, err := r.ask("udp", gw4, m); err != nil || a.Rcode != dns.RcodeBadVers {
		t.Errorf("EDNS version 1: %v, %v", a, err)
	}
}

// Clients that open connections and say nothing, or ask what is never answered, hinder nobody else, and are cut off.
func TestSilentClients(t *testing.T) {
	r := newRig(t)
	newUpstream(t, "127.0.0.5", func(dns.ResponseWriter, *dns.Msg, *dns.Msg) {})
	resolv(t, "127.0.0.5")
	r.record(true, "c1", names.Record{Addrs: addrs("10.1.0.2/16")})
	r.record(true, "c2", names.Record{Addrs: addrs("10.1.0.3/16")})
	nstest.RunIn(t, r.netns, "ip", "addr", "add", "10.1.0.3/16", "dev", "eth0")
	var silent []net.Conn
	if err := nstest.In(r.netns, func() error {
		for i := range 600 {
			d := net.Dialer{Deadline: nstest.Deadline(t)}
			c, err := d.Dial("tcp", gw4+":53")
			if err != nil {
				return err
			}
			if i%2 == 0 {
				c.Write([]byte{0})
			}
			silent = append(silent, c)
		}
		for range 300 {
			c, err := net.Dial("udp", gw4+":53")
			if err != nil {
				return err
			}
			m := new(dns.Msg)
			m.SetQuestion("never.example.com.", dns.TypeA)
			b, _ := m.Pack()
			c.Write(b)
			silent = append(silent, c)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	other := &net.TCPAddr{IP: net.ParseIP("10.1.0.3")}
	for range 20 {
		if got := r.answer("udp", "c2", dns.TypeA); got != "10.1.0.3" {
			t.Fatalf("by UDP: %s", got)
		}
		m := new(dns.Msg)
		m.SetQuestion("c1.", dns.TypeA)
		if err := nstest.In(r.netns, func() error {
			a, _, err := (&dns.Client{Net: "tcp", Timeout: nstest.Patience(t), Dialer: &net.Dialer{LocalAddr: other}}).Exchange(m,
				gw4+":53")
			if err == nil && said(a) != "10.1.0.2" {
				err = fmt.Errorf("%v", a)
			}
			return err
		}); err != nil {
			t.Fatalf("by TCP: %v", err)
		}
	}
	for i, c := range silent[:600] {
		c.SetReadDeadline(nstest.Deadline(t))
		if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Fatalf("silent connection %d: %v, want its end", i, err)
		}
	}
	r.until("room for a client that was silent", func() bool { return r.answer("tcp", "c1", dns.TypeA) == "10.1.0.2" })
	for _, c := range silent {
		c.Close()
	}
}
