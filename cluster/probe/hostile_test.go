package probe

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
)

// Nothing but a datagram that a table could have sent is understood, and it is understood as it was meant.
func FuzzDatagram(f *testing.F) {
	d := datagram{ask: true, mine: 7, yours: 9}
	d.echoes[1][full] = 1500 * time.Millisecond
	f.Add(d.bytes())
	f.Add([]byte{})
	f.Add(append(d.bytes(), 0))
	f.Add(make([]byte, datagramLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := parseDatagram(b)
		if ok && string(got.bytes()) != string(b) {
			t.Errorf("%x is read as %+v", b, got)
		}
	})
}

// FuzzEcho: what came in an echo is read within its bounds.
func FuzzEcho(f *testing.F) {
	f.Add(echoData{known, 1 << 63}.bytes(100))
	f.Add([]byte("FLpe"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := parseEcho(b); ok && e.size > search {
			t.Errorf("%x is of size %d", b, e.size)
		}
	})
}

// What strangers send changes nothing, and what is sent in a peer's name, or sent once more, changes neither another
// peer's report nor what this node knows of its own packets.
func TestHostileDatagrams(t *testing.T) {
	s := newSim(3)
	s.drops = func(from, to int, what string, bytes int) bool { return to == 0 && from == 1 } // n1 is not heard
	var recorded []datagram
	s.nodes[2].table.wire = recorder{s.nodes[2], &recorded}
	s.run(3 * time.Minute)
	const lost = "agents lost, IPv4 lost lost, IPv6 lost lost"
	const passed = "agents passed, IPv4 passed passed, IPv6 passed passed"
	if got := s.of(0, 1); got != lost {
		t.Fatal("before:", got)
	}
	zero := s.nodes[0].table
	answered := 0
	zero.wire = counter{s.nodes[0], &answered}
	for i := range 100_000 {
		d := recorded[i%len(recorded)] // those of n2, in the names of others
		d.ask = i%2 == 0
		zero.receiveDatagram(s.now, endpoint(1), d)
		zero.receiveDatagram(s.now, endpoint(99), d)
		zero.receiveDatagram(s.now, netip.MustParseAddr("2001:db8::1"), d)
		for _, from := range append(inner(1), inner(99)...) {
			zero.receiveEcho(s.now, from, true, 1450, echoData{full, uint64(i)})
			zero.receiveEcho(s.now, from, true, 100, echoData{search, uint64(i)})
		}
		s.now = s.now.Add(time.Millisecond)
	}
	if most := 100*5 + 1; answered > most {
		t.Errorf("%d answers in 100 seconds, want at most %d", answered, most)
	}
	if len(zero.peers) != 2 || len(zero.byEndpoint) != 2 || len(zero.byInner) != 4 {
		t.Error("strangers are remembered")
	}
	zero.wire = s.nodes[0]
	s.run(time.Minute)
	// Of n1 it is said that something came from there; nothing is said to have arrived there.
	if got, want := s.of(0, 1), "agents lost-there, IPv4 lost lost, IPv6 lost lost"; got != want {
		t.Errorf("n1 after the flood: %s; want %s", got, want)
	}
	if got := s.of(0, 2); got != passed {
		t.Errorf("n2 after the flood: %s", got)
	}
	s.run(4 * time.Minute)
	if got := s.of(0, 1); got != lost {
		t.Errorf("n1 some minutes later: %s", got)
	}
}

// A recorder keeps the datagrams that a node sends.
type recorder struct {
	*simNode
	sent *[]datagram
}

func (r recorder) datagram(local, to netip.Addr, d datagram) error {
	*r.sent = append(*r.sent, d)
	return r.simNode.datagram(local, to, d)
}

// A counter counts answers, which arrive nowhere.
type counter struct {
	*simNode
	answers *int
}

func (c counter) datagram(local, to netip.Addr, d datagram) error {
	if !d.ask {
		*c.answers++
	}
	return nil
}

// A flood in the names of all peers is answered within a bound.
func TestAnswersAreBounded(t *testing.T) {
	s := newSim(1)
	answers := 0
	zero := s.nodes[0].table
	zero.wire = counter{s.nodes[0], &answers}
	zero.set(s.now, inner(0), s.peersOf(0, 1001))
	for range 10 {
		for i := 1; i <= 1000; i++ {
			zero.receiveDatagram(s.now, endpoint(i), datagram{ask: true, mine: 1})
		}
		s.now = s.now.Add(time.Second)
	}
	if answers != 10*answersMost {
		t.Errorf("%d answers in ten seconds, want %d", answers, 10*answersMost)
	}
}

// A peer that changes is tested anew, and one that goes is forgotten, also while its test goes on.
func TestPeersChange(t *testing.T) {
	s := newSim(3)
	s.run(2 * time.Minute)
	n := s.nodes[0]
	peers := s.peersOf(0, 3)
	tests := n.tests["n2"]
	peers[1].MTU = 1300
	n.table.set(s.now, inner(0), peers[1:])
	s.run(10 * time.Second)
	if got := n.path["n2"].Inside[0].Size; got != 1300 || n.tests["n2"] != tests+1 {
		t.Errorf("%d bytes are tested, %d tests more", got, n.tests["n2"]-tests)
	}
	before := n.path["n1"]
	s.run(2 * time.Minute)
	if n.path["n1"].Tested != before.Tested || n.table.peers["n1"] != nil {
		t.Error("a peer that is gone is tested")
	}
	n.table.set(s.now, inner(0)[:1], peers[:1]) // the node has no range of IPv6
	s.run(10 * time.Second)
	if in := n.path["n1"].Inside; len(in) != 1 || in[0].Family != "IPv4" || in[0].Full != agentstatus.Passed {
		t.Errorf("%+v", in)
	}
}
