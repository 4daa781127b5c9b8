package probe

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
)

// A sim is a network between tables, with a time of its own.
type sim struct {
	now   time.Time
	nodes []*simNode
	sent  []time.Time // all packets

	// drops says whether a packet is lost. What is "echo", "reply" or "datagram".
	drops func(from, to int, what string, bytes int) bool
}

// A simNode is the wire of one table, and answers echoes as a kernel does.
type simNode struct {
	sim    *sim
	i      int
	table  *table
	silent bool // no agent runs there
	path   map[string]agentstatus.Path
	mtu    map[string]int
	tests  map[string]int
}

func inner(i int) []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{10, byte(100 + i>>8), byte(i), 1}),
		netip.AddrFrom16([16]byte{0xfd, 2: byte(i >> 8), 3: byte(i), 15: 1})}
}

func endpoint(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }

// newSim is a network in which each node has all others as peers.
func newSim(nodes int) *sim {
	s := &sim{now: time.Unix(1000, 0), drops: func(int, int, string, int) bool { return false }}
	for i := range nodes {
		n := &simNode{sim: s, i: i, path: map[string]agentstatus.Path{}, mtu: map[string]int{}, tests: map[string]int{}}
		random := rand.New(rand.NewPCG(uint64(i), 1))
		n.table = &table{wire: n, random: random.Uint64, every: time.Minute, tested: func(node string, p agentstatus.Path, mtu int) {
			n.path[node], n.mtu[node] = p, mtu
			n.tests[node]++
		}}
		s.nodes = append(s.nodes, n)
	}
	for i, n := range s.nodes {
		n.table.set(s.now, inner(i), s.peersOf(i, nodes))
	}
	return s
}

func (s *sim) peersOf(i, nodes int) (peers []Peer) {
	for j := range nodes {
		if j != i {
			peers = append(peers, Peer{Node: fmt.Sprint("n", j), Endpoint: endpoint(j), Local: endpoint(i), Addrs: inner(j),
				MTU: 1450})
		}
	}
	return peers
}

func (n *simNode) echo(to netip.Addr, bytes int, e echoData) error {
	s := n.sim
	s.sent = append(s.sent, s.now)
	j := slices.IndexFunc(s.nodes, func(m *simNode) bool { return slices.Contains(inner(m.i), to) })
	if j < 0 || s.drops(n.i, j, "echo", bytes) {
		return nil
	}
	f := familyOf(to)
	if !s.nodes[j].silent {
		s.nodes[j].table.receiveEcho(s.now, inner(n.i)[f], false, bytes, e)
	}
	if !s.drops(j, n.i, "reply", bytes) {
		n.table.receiveEcho(s.now, to, true, bytes, e)
	}
	return nil
}

func (n *simNode) datagram(local, to netip.Addr, d datagram) error {
	s := n.sim
	s.sent = append(s.sent, s.now)
	j := slices.IndexFunc(s.nodes, func(m *simNode) bool { return endpoint(m.i) == to })
	if j < 0 || s.nodes[j].silent || s.drops(n.i, j, "datagram", datagramLen) {
		return nil
	}
	d, ok := parseDatagram(d.bytes())
	if !ok {
		return errors.New("does not understand itself")
	}
	s.nodes[j].table.receiveDatagram(s.now, local, d)
	return nil
}

func (n *simNode) inner(to netip.Addr, by Link, nonce uint64) error {
	s := n.sim
	s.sent = append(s.sent, s.now)
	j := slices.IndexFunc(s.nodes, func(m *simNode) bool { return slices.Contains(inner(m.i), to) })
	what, kind, link := "inner", byRoute, 7
	if by.Index != 0 {
		what, kind, link = "link", byLink, by.Index
	}
	if j < 0 || s.nodes[j].silent || s.drops(n.i, j, what, smallBytes) {
		return nil
	}
	s.nodes[j].table.receiveInner(s.now, inner(n.i)[familyOf(to)], innerData{kind, nonce}, link)
	return nil
}

// run lets time pass.
func (s *sim) run(d time.Duration) {
	end := s.now.Add(d)
	for {
		var first *simNode
		for _, n := range s.nodes {
			next := n.table.next()
			if !n.silent && !next.IsZero() && (first == nil || next.Before(first.table.next())) {
				first = n
			}
		}
		if first == nil || first.table.next().After(end) {
			s.now = end
			return
		}
		if next := first.table.next(); next.After(s.now) {
			s.now = next
		}
		first.table.run(s.now)
	}
}

// of is what one node found of another.
func (s *sim) of(i, j int) string {
	p, tested := s.nodes[i].path[fmt.Sprint("n", j)]
	if !tested {
		return "untested"
	}
	said := []string{"agents " + string(p.Agents)}
	for _, in := range p.Inside {
		said = append(said, fmt.Sprintf("%s %s %s", in.Family, in.Small, in.Full))
		if in.UDP == agentstatus.LostThere {
			said = append(said, "no UDP")
		}
		if in.Link != "" {
			said = append(said, fmt.Sprint("by the link ", in.Link))
		}
	}
	return strings.Join(said, ", ")
}

// Each node knows in which direction packets are lost, of which size, and of which family.
func TestDirections(t *testing.T) {
	for name, c := range map[string]struct {
		drops     func(from, to int, what string, bytes int) bool
		silent    bool
		zero, one string // what the nodes say
	}{
		"nothing is lost": {
			drops: func(int, int, string, int) bool { return false },
			zero:  "agents passed, IPv4 passed passed, IPv6 passed passed",
			one:   "agents passed, IPv4 passed passed, IPv6 passed passed"},
		"the tunnel one way": {
			drops: func(from, to int, what string, bytes int) bool { return from == 0 && what != "datagram" },
			zero:  "agents passed, IPv4 lost-there lost-there, no UDP, IPv6 lost-there lost-there, no UDP",
			one:   "agents passed, IPv4 lost-back lost-back, IPv6 lost-back lost-back"},
		"large packets one way": {
			drops: func(from, to int, what string, bytes int) bool { return from == 0 && bytes > 1400 },
			zero:  "agents passed, IPv4 passed lost-there, IPv6 passed lost-there",
			one:   "agents passed, IPv4 passed lost-back, IPv6 passed lost-back"},
		"datagrams one way": {
			drops: func(from, to int, what string, bytes int) bool { return from == 0 && what == "datagram" },
			zero:  "agents lost-there, IPv4 passed passed, IPv6 passed passed",
			one:   "agents lost, IPv4 passed passed, IPv6 passed passed"},
		"datagrams in the tunnel one way": {
			drops: func(from, to int, what string, bytes int) bool { return from == 0 && what == "inner" },
			zero:  "agents passed, IPv4 passed passed, no UDP, IPv6 passed passed, no UDP",
			one:   "agents passed, IPv4 passed passed, IPv6 passed passed"},
		"everything": {
			drops: func(int, int, string, int) bool { return true },
			zero:  "agents lost, IPv4 lost lost, IPv6 lost lost",
			one:   "agents lost, IPv4 lost lost, IPv6 lost lost"},
		"no agent there": {
			silent: true,
			drops:  func(int, int, string, int) bool { return false },
			zero:   "agents lost, IPv4 passed passed, IPv6 passed passed",
			one:    "untested"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(2)
			s.nodes[1].silent = c.silent
			s.drops = c.drops
			s.run(5 * time.Minute)
			if got := s.of(0, 1); got != c.zero {
				t.Errorf("n0 says %s; want %s", got, c.zero)
			}
			if got := s.of(1, 0); got != c.one {
				t.Errorf("n1 says %s; want %s", got, c.one)
			}
			if n := s.nodes[0].tests["n1"]; n < 4 || n > 6 {
				t.Errorf("%d tests in five minutes", n)
			}
			s.drops = func(int, int, string, int) bool { return false }
			s.nodes[1].silent = false
			s.run(2 * time.Minute)
			if got, want := s.of(0, 1), "agents passed, IPv4 passed passed, IPv6 passed passed"; got != want {
				t.Errorf("healed: n0 says %s", got)
			}
		})
	}
}

// Where a way is cut, no node says of the other that it sends, though it did before.
func TestCut(t *testing.T) {
	s := newSim(2)
	s.run(3 * time.Minute)
	s.drops = func(int, int, string, int) bool { return true }
	for range 5 * 60 {
		s.run(time.Second)
		for n := range 2 {
			if said := s.of(n, 1-n); strings.Contains(said, "lost-there") {
				t.Fatalf("n%d says %s of a way that is cut both ways", n, said)
			}
		}
	}
}

// Each node knows whether what it sends by the link arrives, also if the other one does not want to send so.
func TestLinks(t *testing.T) {
	s := newSim(2)
	for i, n := range s.nodes {
		peers := s.peersOf(i, 2)
		peers[0].Links, peers[0].TryLinks = [families]Link{{Index: 3}, {Index: 3}}, i == 0
		n.table.set(s.now, inner(i), peers)
	}
	const whole = "agents passed, IPv4 passed passed, by the link passed, IPv6 passed passed, by the link passed"
	expect := func(when, zero string) {
		t.Helper()
		s.run(3 * time.Minute)
		if got := s.of(0, 1); got != zero {
			t.Errorf("%s: n0 says %s; want %s", when, got, zero)
		}
		if got, want := s.of(1, 0), "agents passed, IPv4 passed passed, IPv6 passed passed"; got != want {
			t.Errorf("%s: n1 says %s; want %s", when, got, want)
		}
	}
	expect("nothing is lost", whole)
	s.drops = func(from, to int, what string, bytes int) bool { return what == "link" }
	expect("the link drops", strings.ReplaceAll(whole, "by the link passed", "by the link lost-there"))
	if !s.nodes[0].path["n1"].Whole() {
		t.Error("the path by the tunnel is not whole")
	}
	s.drops = func(int, int, string, int) bool { return false }
	expect("healed", whole)
	// What another host sends in the name of n0 does not count, because it cannot know the nonce.
	s.drops = func(from, to int, what string, bytes int) bool {
		if what == "link" {
			s.nodes[1].table.receiveInner(s.now, inner(0)[0], innerData{byLink, 1}, 3)
			s.nodes[1].table.receiveInner(s.now, inner(0)[1], innerData{byLink, 1}, 3)
		}
		return what == "link"
	}
	expect("forged", strings.ReplaceAll(whole, "by the link passed", "by the link lost-there"))
	s.drops = func(int, int, string, int) bool { return false }
	expect("no more forged", whole)
	// What comes by another link does not count: the tunnel carried it.
	s.nodes[1].table.peers["n0"].Links = [families]Link{{Index: 4}, {Index: 4}}
	expect("by another link", strings.ReplaceAll(whole, "by the link passed", "by the link lost-there"))
}

// The path's MTU is found to the byte, by the node whose packets are lost, and forgotten when the path is whole again.
func TestPathMTU(t *testing.T) {
	limit := 0
	s := newSim(2)
	s.drops = func(from, to int, what string, bytes int) bool { return from == 0 && limit != 0 && bytes > limit }
	for _, mtu := range []int{0, 1449, 1300, 1400, 577, 0} {
		limit = mtu
		before := len(s.sent)
		s.run(3 * time.Minute)
		got := s.nodes[0].mtu["n1"]
		if got != mtu || s.nodes[1].mtu["n0"] != 0 {
			t.Errorf("found %d and %d, want %d and 0", got, s.nodes[1].mtu["n0"], mtu)
		}
		if in := s.nodes[0].path["n1"].Inside; in[0].MTU != mtu || in[1].MTU != mtu {
			t.Errorf("status says %+v, want %d", in, mtu)
		}
		if n := len(s.sent) - before; n > 250 {
			t.Errorf("%d packets for two nodes in three minutes", n)
		}
	}
	limit = 300 // no host may have so little: it is another trouble
	s.run(3 * time.Minute)
	if got := s.nodes[0].mtu["n1"]; got != 0 || s.nodes[0].path["n1"].Inside[0].MTU != 300 {
		t.Errorf("hands on %d; %+v", got, s.nodes[0].path["n1"])
	}
}

// A test that meets a single loss does not fail.
func TestSingleLosses(t *testing.T) {
	s := newSim(2)
	lost := map[string]bool{}
	s.drops = func(from, to int, what string, bytes int) bool {
		key := fmt.Sprint(from, what, bytes, s.now.Truncate(time.Minute))
		once := !lost[key]
		lost[key] = true
		return once
	}
	s.nodes[0].table.tested = func(node string, p agentstatus.Path, mtu int) {
		if !p.Whole() || mtu != 0 {
			t.Errorf("%+v, MTU %d", p, mtu)
		}
		s.nodes[0].tests[node]++
	}
	s.run(10 * time.Minute)
	if s.nodes[0].tests["n1"] < 9 {
		t.Error(s.nodes[0].tests)
	}
}

// A peer that was silent gets each packet once, until something comes from it: then nothing is said of it before what a
// single loss took was sent again.
func TestSilentPeer(t *testing.T) {
	s := newSim(2)
	away := func(int, int, string, int) bool { return true }
	s.drops = away
	s.run(2 * time.Minute)
	s.sent = nil
	s.run(10 * time.Minute)
	const packets = 2*3 + 1 // two echoes and an inner datagram of each family, and one datagram
	if tests := len(s.sent) / packets; tests < 2*9 || tests > 2*11 || len(s.sent)%packets != 0 {
		t.Errorf("%d packets in ten minutes", len(s.sent))
	}

	losses := 0
	s.drops = func(from, _ int, what string, bytes int) bool {
		lost := from == 0 && what == "echo" && bytes != smallBytes && losses < 4
		if lost {
			losses++
		}
		return lost
	}
	for s.of(0, 1) == "agents lost, IPv4 lost lost, IPv6 lost lost" {
		s.run(time.Second)
	}
	if want := "agents passed, IPv4 passed passed, IPv6 passed passed"; s.of(0, 1) != want || losses != 4 {
		t.Errorf("after %d losses: %s, want %s", losses, s.of(0, 1), want)
	}
}

// With 1,000 peers, each is tested in each minute, and packets a second are bounded, also if none answers.
func TestThousandPeers(t *testing.T) {
	for name, drops := range map[string]bool{"all answer": false, "none answers": true} {
		t.Run(name, func(t *testing.T) {
			s := newSim(1)
			n := s.nodes[0]
			n.table.wire = mirror{n, drops}
			n.table.set(s.now, inner(0), s.peersOf(0, 1001))
			s.run(10 * time.Minute)
			for i := 1; i <= 1000; i++ {
				name := fmt.Sprint("n", i)
				if n.tests[name] < 8 || n.tests[name] > 12 || n.path[name].Whole() == drops {
					t.Fatalf("%s: %d tests in ten minutes, %+v", name, n.tests[name], n.path[name])
				}
			}
			seconds := map[int64]int{}
			for _, at := range s.sent {
				seconds[at.Unix()]++
			}
			most := 0
			for _, packets := range seconds {
				most = max(most, packets)
			}
			t.Logf("%d packets in ten minutes, %d in the busiest second", len(s.sent), most)
			if most > 700 {
				t.Errorf("%d packets in one second", most)
			}
		})
	}
}

// A mirror answers each echo and each datagram at once, or none.
type mirror struct {
	*simNode
	drops bool
}

func (m mirror) echo(to netip.Addr, bytes int, e echoData) error {
	m.sim.sent = append(m.sim.sent, m.sim.now)
	if !m.drops {
		m.table.receiveEcho(m.sim.now, to, true, bytes, e)
	}
	return nil
}

func (m mirror) datagram(local, to netip.Addr, d datagram) error {
	m.sim.sent = append(m.sim.sent, m.sim.now)
	if d.ask && !m.drops {
		d.ask, d.mine, d.yours = false, 1, d.mine
		d.inner = [families][routes]uint64{{d.yours, d.yours}, {d.yours, d.yours}} // all have come
		m.table.receiveDatagram(m.sim.now, to, d)
	}
	return nil
}

func (m mirror) inner(netip.Addr, Link, uint64) error {
	m.sim.sent = append(m.sim.sent, m.sim.now)
	return nil
}
