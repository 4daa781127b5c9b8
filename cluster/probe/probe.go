// Package probe tests the paths from this node to the others: as packets of containers go, by ICMP, and by a datagram
// between the agents in which each says what it received, so that both know in which direction packets are lost.
package probe

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/kernel"
)

// A Peer is another node.
type Peer struct {
	Node     string
	Endpoint netip.Addr   // its address outside of the tunnel
	Local    netip.Addr   // this node's address that packets to Endpoint come from
	Addrs    []netip.Addr // its own addresses among its containers, at most one of a family
	MTU      int          // of the way to its containers, in bytes

	// Links are the next hops of IPv4 and IPv6 packets to its containers by the link that both nodes are on. A link
	// with the index zero is none.
	Links [families]Link

	TryLinks bool // packets are sent by Links, too

	// Way says what carries packets to its containers. A path whose way has changed is tested soon.
	Way string
}

// A Link is a next hop on a link of the host.
type Link struct {
	Index int
	Via   netip.Addr
}

func (p Peer) same(as Peer) bool {
	return p.Endpoint == as.Endpoint && p.Local == as.Local && p.MTU == as.MTU && slices.Equal(p.Addrs, as.Addrs) &&
		p.Links == as.Links && p.TryLinks == as.TryLinks && p.Way == as.Way
}

// A Prober tests the paths to all peers. It has at most six sockets and seven goroutines, however many peers there are,
// and sends at most some hundred packets a second.
type Prober struct {
	NS   *kernel.NS
	Port uint16 // UDP port of the datagrams between agents, the same on all nodes

	Every time.Duration // from test to test of a path, at least [LeastEvery]

	// Tested is called when a test of a path ended, from the goroutine that Run has. MTU is the length of the longest
	// packet on the path in bytes; zero: packets as long as the way says pass, or nothing is known.
	Tested func(node string, path agentstatus.Path, mtu int)

	// Sealed takes datagrams that came from the address of a node, which another one may have sent in its name. It is called
	// from the goroutine that Run has, and returns soon. Nil: they are dropped.
	Sealed func(node string, b []byte)

	sets  chan setting
	sends chan sending
	err   atomic.Pointer[error]
}

// A sending is a datagram for the Sealed of another node.
type sending struct {
	node string
	b    []byte
}

// Send sends a datagram to the Sealed of another node. It is lost if there is no such peer, or too much to send.
func (p *Prober) Send(node string, b []byte) {
	select {
	case p.sends <- sending{node, append(sealedMagic(), b...)}:
	default:
	}
}

// A setting is what to test.
type setting struct {
	own   []netip.Addr
	peers []Peer
}

// LeastEvery is longer than a test takes that has no answer.
const LeastEvery = 15 * time.Second

// New returns a Prober that tests each path once a minute when Run is called.
func New(ns *kernel.NS, port uint16, tested func(node string, path agentstatus.Path, mtu int)) *Prober {
	return &Prober{NS: ns, Port: port, Every: time.Minute, Tested: tested, sets: make(chan setting, 1),
		sends: make(chan sending, 16)}
}

// Set says which peers there are, and this node's own addresses among its containers. The last one counts.
func (p *Prober) Set(own []netip.Addr, peers []Peer) {
	for {
		select {
		case p.sets <- setting{own, peers}:
			return
		default:
		}
		select {
		case <-p.sets:
		default:
		}
	}
}

// Err returns why not all paths can be tested. The next Set tries again.
func (p *Prober) Err() error {
	if err := p.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Run tests until ctx ends.
func (p *Prober) Run(ctx context.Context) {
	w := &sockets{ns: p.NS, port: p.Port, arrived: make(chan arrival), ctx: ctx}
	defer w.close()
	t := &table{wire: w, random: rand.Uint64, every: p.Every, tested: p.Tested, sealed: p.Sealed}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-p.sets:
			err := w.open(s)
			p.err.Store(&err)
			t.set(time.Now(), s.own, s.peers)
		case a := <-w.arrived:
			a.give(t, time.Now())
		case s := <-p.sends:
			if to := t.peers[s.node]; to != nil {
				_ = w.send(to.Local, to.Endpoint, s.b) // as if it were lost on the way
			}
		case <-timer.C:
			t.run(time.Now())
		}
		if next := t.next(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}
