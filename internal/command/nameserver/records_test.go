package nameserver

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"github.com/fairlead-cni/fairlead/resource/names"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/miekg/dns"
)

// Records that come and go are heard of without being told; those that cannot be read, or are somebody else's, count as
// none.
func TestRecords(t *testing.T) {
	r := newRig(t)
	r.record(false, "c1", names.Record{Addrs: addrs("10.1.0.2/16")})
	r.until("c1", func() bool { return r.answer("udp", "c1", dns.TypeA) == "10.1.0.2" })
	r.record(false, "c1", names.Record{Addrs: addrs("10.1.0.2/16"), Names: []string{"renamed"}})
	r.until("another name", func() bool {
		return r.answer("udp", "renamed", dns.TypeA) == "10.1.0.2" && r.answer("udp", "c1", dns.TypeA) == "NXDOMAIN"
	})
	r.record(true, "c2", names.Record{Addrs: addrs("10.1.0.9/16")})
	r.memory.Delete(names.Kept, spec.Owner{Network: "net", ContainerID: "c2", IfName: "eth0"})
	r.until("c2 to go", func() bool { return r.answer("udp", "c2", dns.TypeA) == "NXDOMAIN" })

	files, _ := filepath.Glob(r.memory.Dir + "/names.*")
	if len(files) != 1 {
		t.Fatal(files)
	}
	b, _ := os.ReadFile(files[0])
	for name, content := range map[string]string{
		"names.0123456789ab.0123456789abcdef": string(b), // which is another's
		"names.0123456789ab.0123456789abcdee": "{",
		"names.0123456789ab":                  "{}",
		"other.0123456789ab.0123456789abcdee": "{}",
	} {
		if err := os.WriteFile(filepath.Join(r.memory.Dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(r.memory.Dir, "names.0123456789ab.0123456789abcded"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.record(true, "c3", names.Record{Addrs: addrs("10.1.0.4/16")})
	for _, q := range []names.Question{{Record: "../../x"}, {Record: "names"},
		{Network: "net", Record: "0123456789ab.0123456789abcdee"}} {
		if err := names.Ask(t.Context(), Socket(r.memory), q); err == nil ||
			!strings.Contains(err.Error(), "there is no record") {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start()
	for name, want := range map[string]string{"renamed": "10.1.0.2", "c3": "10.1.0.4", "c1": "NXDOMAIN"} {
		if got := r.answer("tcp", name, dns.TypeA); got != want {
			t.Errorf("after a restart %s is %q, want %q", name, got, want)
		}
	}
	if err := os.RemoveAll(r.memory.Dir); err != nil {
		t.Fatal(err)
	}
	if err := <-r.done; err == nil || !strings.Contains(err.Error(), "was removed") {
		t.Errorf("when the directory went: %v", err)
	}
	r.done = nil
}

// A bridge, or another link, that goes and comes again takes no name with it, nor does one that comes later than its
// record.
func TestAddressesComeAndGo(t *testing.T) {
	r := newRig(t)
	r.record(true, "c1", names.Record{Addrs: addrs("10.1.0.2/16", "fd00:1::2/64")})
	for range 2 {
		for _, gw := range []string{gw4, gw6} {
			for _, network := range []string{"udp", "tcp"} {
				m := new(dns.Msg)
				m.SetQuestion("c1.", dns.TypeAAAA)
				if a, err := r.ask(network, gw, m); err != nil || said(a) != "fd00:1::2" {
					t.Errorf("at %s by %s: %v, %v", gw, network, a, err)
				}
			}
		}
		nstest.Run(t, "ip", "link", "del", "gw0")
		r.stop()
		r.start() // where the address is not there yet
		r.link()
	}
}

// A program that has port 53 of all addresses is named, and when it goes the server listens by itself.
func TestPortTaken(t *testing.T) {
	r := newRig(t)
	p, err := net.ListenPacket("udp", "[::]:53")
	if err != nil {
		t.Fatal(err)
	}
	r.record(false, "c1", names.Record{Addrs: addrs("10.1.0.2/16")})
	const say = "process other (PID 1) listens on [::]:53; let it listen only on addresses of its own"
	if err := r.tell("c1"); err == nil || !strings.Contains(err.Error(), say) {
		t.Errorf("is %v", err)
	}
	r.until("the log", func() bool { return strings.Contains(r.log.String(), say) })
	p.Close()
	r.until("an answer", func() bool { return r.answer("udp", "c1", dns.TypeA) == "10.1.0.2" })
}

// Who asks decides what is answered: the address that is asked, and that of the client.
func TestScope(t *testing.T) {
	x := newIndex()
	put := func(network, id, addr string, gateways ...string) {
		r := &names.Record{Network: network, ContainerID: id, IfName: "eth0", Names: []string{id, "same"}, Addrs: addrs(addr)}
		for _, g := range gateways {
			r.Gateways = append(r.Gateways, netip.MustParseAddr(g))
		}
		x.put(network+id, r)
	}
	put("a", "a1", "10.1.0.2/24", "10.1.0.1")
	put("a", "a2", "10.1.0.3/24", "10.1.0.1")
	put("b", "b1", "10.2.0.2/24", "10.2.0.1")
	put("b", "a2", "10.2.0.3/24", "10.2.0.1") // one container in two networks
	put("c", "c1", "10.3.0.2/24", "10.3.0.1") // two networks of one bridge
	put("d", "d1", "10.3.0.3/24", "10.3.0.1")
	for _, tt := range []struct{ gateway, client, name, want string }{
		{"10.1.0.1", "10.1.0.2", "a2", "[10.1.0.3]"}, {"10.1.0.1", "10.1.0.2", "b1", "[]"}, {"10.1.0.1", "10.1.0.77", "a2",
			"[10.1.0.3]"},
		{"10.1.0.1", "10.1.0.1", "a1", "[10.1.0.2]"}, {"10.1.0.1", "10.2.0.2", "a1", "refused"}, {"10.1.0.1", "192.0.2.1",
			"a1", "refused"},
		{"10.1.0.1", "10.1.0.3", "b1", "[10.2.0.2]"}, {"10.2.0.1", "10.2.0.3", "a1", "[10.1.0.2]"}, {"10.2.0.1", "10.2.0.3",
			"same", "[10.2.0.2 10.2.0.3]"},
		{"10.3.0.1", "10.3.0.2", "same", "[10.3.0.2]"}, {"10.3.0.1", "10.3.0.3", "c1", "[]"}, {"10.3.0.1", "10.3.0.9", "c1",
			"refused"},
		{"10.3.0.1", "10.3.0.1", "c1", "refused"}, {"10.9.0.1", "10.1.0.2", "a1", "refused"}, {"::ffff:10.1.0.1",
			"::ffff:10.1.0.2", "a1", "[10.1.0.2]"},
	} {
		s, ok := x.scope(netip.MustParseAddr(tt.gateway), netip.MustParseAddr(tt.client))
		got := "refused"
		if ok {
			all, _, _ := x.lookUp(s, tt.name)
			got = fmt.Sprint(all)
		}
		if got != tt.want {
			t.Errorf("%s asks %s for %s: %s, want %s", tt.client, tt.gateway, tt.name, got, tt.want)
		}
	}
	for _, key := range x.keys() {
		x.put(key, nil)
	}
	if len(x.zones)+len(x.gateways)+len(x.containers)+len(x.records) != 0 {
		t.Errorf("left %+v", x)
	}
}

// An alias that is another container's own name takes none of its answers. It leads to its own container when the other
// is gone.
func TestOwnNameBeforeAlias(t *testing.T) {
	r := newRig(t)
	r.record(true, "thief", names.Record{Addrs: addrs("10.1.0.66/16"), Aliases: []string{"db", "pool"}, Domain: "test"})
	r.record(true, "db", names.Record{Addrs: addrs("10.1.0.3/16"), Aliases: []string{"pool"}, Domain: "test"})
	for name, want := range map[string]string{"db": "10.1.0.3", "db.test": "10.1.0.3", "thief": "10.1.0.66"} {
		if got := r.answer("udp", name, dns.TypeA); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := r.answer("udp", "pool", dns.TypeA); len(strings.Fields(got)) != 2 {
		t.Errorf("an alias of two is %q", got)
	}
	if got := r.answer("udp", "66.0.1.10.in-addr.arpa", dns.TypePTR); got != "thief.test." {
		t.Errorf("the name of an address is %q", got)
	}
	r.memory.Delete(names.Kept, spec.Owner{Network: "net", ContainerID: "db", IfName: "eth0"})
	r.until("the alias", func() bool { return r.answer("udp", "db", dns.TypeA) == "10.1.0.66" })
}

// FuzzReversed: names of addresses are read as they are written.
func FuzzReversed(f *testing.F) {
	f.Add("10.1.0.2")
	f.Add("fd00::2")
	f.Fuzz(func(t *testing.T, s string) {
		reversed(s)
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return
		}
		name, err := dns.ReverseAddr(s)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := reversed(strings.TrimSuffix(name, ".")); !ok || got != a {
			t.Errorf("%s is %v", name, got)
		}
	})
}

// thousands puts records in an index, in a network of many containers.
func thousands(n int) *index {
	x := newIndex()
	for i := range n {
		x.put(fmt.Sprint(i), &names.Record{Network: "net", ContainerID: fmt.Sprint("c", i), IfName: "eth0",
			Names: []string{fmt.Sprint("c", i), "shared", fmt.Sprint("group", i/10)},
			Addrs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}),
				16)}, Gateways: []netip.Addr{netip.MustParseAddr(gw4)}})
	}
	return x
}

// An answer among 10,000 containers takes less than a millisecond, also while records come and go.
func TestFast(t *testing.T) {
	s := &Server{index: thousands(10_000)}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				s.index.put(fmt.Sprint("x", i%100), &names.Record{Network: "net", ContainerID: "x", Names: []string{"x"},
					Addrs: addrs("10.1.255.1/16")})
			}
		}
	}()
	const n = 2000
	for end := nstest.Deadline(t); ; { // until it is reached once: the machine has other things to do
		begin := time.Now()
		for range n {
			question(t, s, fmt.Sprint("c", rand.IntN(10_000)))
		}
		each := time.Since(begin) / n
		t.Logf("an answer takes %v", each)
		if each < time.Millisecond || nstest.Race {
			return
		}
		if time.Now().After(end) {
			t.Fatal("an answer takes more than a millisecond")
		}
	}
}

func question(t testing.TB, s *Server, name string) {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), dns.TypeA)
	a := s.answer(m, netip.MustParseAddr(gw4), netip.MustParseAddr("10.1.0.2"))
	if len(a.Answer) != 1 {
		t.Fatalf("%s: %v", name, a)
	}
}

func BenchmarkAnswer(b *testing.B) {
	s := &Server{index: thousands(10_000)}
	for i := 0; b.Loop(); i++ {
		question(b, s, fmt.Sprint("c", i%10_000))
	}
}

// BenchmarkRecord is what an ADD and a DEL among 10,000 others take of the index.
func BenchmarkRecord(b *testing.B) {
	x := thousands(10_000)
	r := &names.Record{Network: "net", ContainerID: "x", IfName: "eth0", Names: []string{"x"},
		Addrs: addrs("10.1.255.1/16"), Gateways: []netip.Addr{netip.MustParseAddr(gw4)}}
	for b.Loop() {
		x.put("x", r)
		x.put("x", nil)
	}
}

// A server that starts among 10,000 records knows all of them when it is ready, and answers a question in less than a
// millisecond. Load makes answers later, so that the fastest counts.
func TestTenThousand(t *testing.T) {
	r := newRig(t)
	r.stop()
	const n = 10_000
	for i := range n {
		r.record(false, fmt.Sprint("c", i), names.Record{Addrs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1,
			byte(i >> 8), byte(i)}), 16)}})
	}
	begin := time.Now()
	r.start()
	t.Logf("ready after %v", time.Since(begin))
	var took []time.Duration
	if err := nstest.In(r.netns, func() error {
		c := dns.Client{Timeout: nstest.Patience(t)}
		conn, err := c.Dial(gw4 + ":53")
		if err != nil {
			return err
		}
		defer conn.Close()
		for range 1000 {
			i := rand.IntN(n)
			m := new(dns.Msg)
			m.SetQuestion(fmt.Sprintf("c%d.", i), dns.TypeA)
			begin := time.Now()
			a, _, err := c.ExchangeWithConn(m, conn)
			took = append(took, time.Since(begin))
			if err != nil {
				return err
			}
			if want := fmt.Sprintf("10.1.%d.%d", i>>8, i&255); said(a) != want {
				return fmt.Errorf("c%d is %s, want %s", i, said(a), want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(took)
	t.Logf("an answer takes %v, in the median %v", took[0], took[len(took)/2])
	if took[0] > time.Millisecond && !nstest.Race {
		t.Error("that is more than a millisecond")
	}
}
