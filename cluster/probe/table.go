package probe

import (
	"cmp"
	"container/heap"
	"net/netip"
	"time"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
)

// How often is tested.
const (
	wait     = time.Second     // until what has no answer is sent again; each time, it doubles
	attempts = 3               // of each packet, unless the peer is silent
	tries    = 2               // of each packet that looks for the path's MTU
	recent   = 5 * time.Second // what a peer received that long before a test began may be of that test

	// The steps of several peers are made at once, because to wake up costs more than to send. It bounds the packets a
	// second.
	gap   = 500 * time.Millisecond
	burst = 50

	answerGap   = 200 * time.Millisecond // between two answers to a peer
	answersMost = 200                    // to all peers in a second
)

// families is the number of IP families; index 0 is IPv4.
const families = 2

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// A wire sends what a table has to send. An error is one of this host.
type wire interface {
	echo(to netip.Addr, bytes int, e echoData) error
	datagram(local, to netip.Addr, d datagram) error
	inner(to netip.Addr, by Link, nonce uint64) error // without a link: by the routes
}

// A table has what is known of all peers. It has no clock, no goroutine and no socket: it is told the time and what
// arrived, and sends on a wire.
type table struct {
	wire   wire
	random func() uint64
	every  time.Duration // from test to test of a peer; less or more by a tenth
	tested func(node string, p agentstatus.Path, mtu int)
	sealed func(node string, b []byte) // takes what others sealed; nil: nothing does

	own        [families]bool // this node has an address among its containers
	peers      map[string]*peer
	byEndpoint map[netip.Addr]*peer
	byInner    map[netip.Addr]*peer
	queue      queue
	last       time.Time // of the last step

	second  time.Time // in which answers were sent
	answers int
}

// A peer is what is known of one, and where its test stands.
type peer struct {
	Peer
	due   time.Time
	place int // in the queue

	began    time.Time // the test that goes on; zero: none
	attempt  int
	echoes   [families][sizes]echo
	nonce    uint64 // of this node's datagrams, another one for each test
	answered bool   // a datagram with nonce came back
	// unanswered is when the first test began whose datagrams did not come back, of all since one did.
	unanswered time.Time
	cause      error // why the last packet was not sent
	search     *searching

	seen     time.Time // anything that came from it
	silent   bool      // nothing came from it in the last test
	heard    time.Time // the last datagram
	theirs   uint64    // its nonce
	replied  time.Time // the last answer to one
	received [families][2]time.Time
	came     [families][routes]uint64 // nonces of its last inner datagrams
	told     time.Time                // when the peer last said in this test what it has received
	says     [families][2]time.Time   // when the peer has received what, by this node's clock
	saysCame [families][routes]uint64 // which inner datagrams the peer has received last

	short [families]bool // full packets did not pass
	mtu   [families]int  // that was found; zero: full packets pass
	path  agentstatus.Path
}

// An echo is one that is sent in a test until it is answered.
type echo struct {
	bytes    int // zero: it is not sent
	nonce    uint64
	answered bool
}

// set replaces the peers. What is known of those that are the same stays.
func (t *table) set(now time.Time, own []netip.Addr, peers []Peer) {
	t.own = [families]bool{}
	for _, a := range own {
		t.own[familyOf(a)] = true
	}
	former := t.peers
	t.peers = make(map[string]*peer, len(peers))
	t.byEndpoint, t.byInner = map[netip.Addr]*peer{}, map[netip.Addr]*peer{}
	t.queue = t.queue[:0]
	for _, want := range peers {
		p := former[want.Node]
		switch {
		case p == nil:
			p = t.newPeer(now, want)
		case !p.Peer.same(want):
			again := t.newPeer(now, want)
			again.mtu, again.path, again.seen = p.mtu, p.path, p.seen
			p = again
		}
		t.peers[want.Node] = p
		t.byEndpoint[want.Endpoint] = p
		for _, a := range want.Addrs {
			t.byInner[a] = p
		}
		p.place = len(t.queue)
		t.queue = append(t.queue, p)
	}
	heap.Init(&t.queue)
}

// newPeer is tested soon. The peer needs a moment, too, to make its way to this node.
func (t *table) newPeer(now time.Time, want Peer) *peer {
	return &peer{Peer: want, nonce: t.newNonce(), due: now.Add(wait + time.Duration(t.random()%uint64(wait)))}
}

// newNonce is never zero.
func (t *table) newNonce() uint64 { return cmp.Or(t.random(), 1) }

// next returns when run has to be called. It is zero without peers.
func (t *table) next() time.Time {
	if len(t.queue) == 0 {
		return time.Time{}
	}
	due := t.queue[0].due
	if soonest := t.last.Add(gap); due.Before(soonest) {
		return soonest
	}
	return due
}

// run makes the steps of the peers that are due, of the first [burst] of them.
func (t *table) run(now time.Time) {
	if len(t.queue) == 0 || now.Before(t.next()) {
		return
	}
	t.last = now
	for range burst {
		p := t.queue[0]
		if p.due.After(now) {
			return
		}
		t.step(p, now)
		heap.Fix(&t.queue, p.place)
	}
}

// step is what is next for a peer.
func (t *table) step(p *peer, now time.Time) {
	switch {
	case p.search != nil:
		t.narrow(p, now)
	case p.began.IsZero():
		t.begin(p, now)
	case p.attempt == p.attempts() || p.complete():
		t.judge(p, now)
	default:
		t.send(p, now)
	}
}

// begin starts a test.
func (t *table) begin(p *peer, now time.Time) {
	if p.answered || p.unanswered.IsZero() {
		p.unanswered = now
	}
	p.began, p.attempt, p.told = now, 0, time.Time{}
	p.nonce, p.answered, p.cause = t.newNonce(), false, nil
	p.echoes = [families][sizes]echo{}
	for _, a := range p.Addrs {
		f := familyOf(a)
		if !t.own[f] {
			continue
		}
		lengths := [sizes]int{small: smallBytes, full: p.MTU}
		if p.mtu[f] != 0 {
			lengths[known], lengths[beyond] = p.mtu[f], p.mtu[f]+1
		}
		for i, bytes := range lengths {
			p.echoes[f][i] = echo{bytes: bytes, nonce: t.newNonce()}
		}
	}
	t.send(p, now)
}

// send sends what has no answer yet. The datagram comes last: the peer's answer says what came before it.
func (t *table) send(p *peer, now time.Time) {
	missing := false
	for _, a := range p.Addrs {
		for i, e := range p.echoes[familyOf(a)] {
			if e.bytes == 0 || e.answered {
				continue
			}
			missing = true
			p.note(t.wire.echo(a, e.bytes, echoData{size(i), e.nonce}))
		}
	}
	for _, a := range p.Addrs {
		for by := range routes {
			if f := familyOf(a); p.sends(f, by) && !p.arrived(f, by) {
				missing = true
				link := [routes]Link{byLink: p.Links[f]}[by]
				p.note(t.wire.inner(a, link, p.nonce))
			}
		}
	}
	if missing || !p.answered {
		p.note(t.wire.datagram(p.Local, p.Endpoint, p.report(now, true)))
	}
	p.due = now.Add(wait << p.attempt)
	p.attempt++
}

// sends reports whether a test has an inner datagram by that route.
func (p *peer) sends(f int, by route) bool {
	return p.echoes[f][small].bytes != 0 && (by == byRoute || p.TryLinks && p.Links[f].Index != 0)
}

// arrived reports whether the peer says that an inner datagram of this test has arrived.
func (p *peer) arrived(f int, by route) bool {
	return !p.told.IsZero() && p.saysCame[f][by] == p.nonce
}

func (p *peer) note(err error) {
	if err != nil {
		p.cause = err
	}
}

// attempts is one while nothing comes from a peer that was silent in the last test.
func (p *peer) attempts() int {
	if p.silent && p.seen.Before(p.began) {
		return 1
	}
	return attempts
}

// complete reports whether all was answered.
func (p *peer) complete() bool {
	for f := range p.echoes {
		for _, e := range p.echoes[f] {
			if e.bytes != 0 && !e.answered {
				return false
			}
		}
		for by := range routes {
			if p.sends(f, by) && !p.arrived(f, by) {
				return false
			}
		}
	}
	return p.answered
}

// says0 is what this node has to say to a peer.
func (p *peer) report(now time.Time, ask bool) datagram {
	d := datagram{ask: ask, mine: p.nonce, yours: p.theirs}
	since := func(at time.Time) time.Duration {
		if at.IsZero() {
			return never
		}
		return now.Sub(at)
	}
	d.inner = p.came
	for f := range families {
		for i, at := range p.received[f] {
			d.echoes[f][i] = since(at)
		}
	}
	return d
}

// receiveEcho takes an echo that came from an address.
func (t *table) receiveEcho(now time.Time, from netip.Addr, reply bool, bytes int, e echoData) {
	p := t.byInner[from]
	if p == nil {
		return
	}
	p.seen = now
	f := familyOf(from)
	switch {
	case !reply && (e.size == small || e.size == full):
		p.received[f][e.size] = now
	case !reply:
	case e.size == search:
		s := p.search
		if s == nil || s.family != f || s.nonce != e.nonce || s.bytes != bytes {
			return
		}
		s.answered = true
		t.hurry(p, now)
	case e.size < sizes:
		sent := &p.echoes[f][e.size]
		if sent.bytes != bytes || sent.nonce != e.nonce {
			return
		}
		sent.answered = true
		t.hurryIfComplete(p, now)
	}
}

// receiveInner takes an inner datagram that came from an address by a link.
func (t *table) receiveInner(now time.Time, from netip.Addr, d innerData, link int) {
	p := t.byInner[from]
	if p == nil || d.by == byLink && link != p.Links[familyOf(from)].Index {
		return
	}
	p.seen = now
	p.came[familyOf(from)][d.by] = d.nonce
}

// receiveDatagram takes a datagram that came from an address. What it says counts only in answer to this test: another
// host cannot know the nonce, and a repeated datagram has a former one.
func (t *table) receiveDatagram(now time.Time, from netip.Addr, d datagram) {
	p := t.byEndpoint[from]
	if p == nil {
		return
	}
	p.seen, p.heard, p.theirs = now, now, d.mine
	if d.yours == p.nonce {
		p.answered, p.told, p.saysCame = true, now, d.inner
		at := func(ago time.Duration) time.Time {
			if ago == never {
				return time.Time{}
			}
			return now.Add(-ago)
		}
		for f := range families {
			for i, ago := range d.echoes[f] {
				p.says[f][i] = at(ago)
			}
		}
		t.hurryIfComplete(p, now)
	}
	if d.ask && t.mayAnswer(p, now) {
		p.note(t.wire.datagram(p.Local, p.Endpoint, p.report(now, false)))
	}
}

// receiveSealed hands on what came from an address of a node. The sender may be another one: the seal tells.
func (t *table) receiveSealed(from netip.Addr, b []byte) {
	if p := t.byEndpoint[from]; p != nil && t.sealed != nil {
		t.sealed(p.Node, b)
	}
}

// mayAnswer bounds the answers to those who ask often.
func (t *table) mayAnswer(p *peer, now time.Time) bool {
	if now.Sub(t.second) >= time.Second {
		t.second, t.answers = now, 0
	}
	if now.Sub(p.replied) < answerGap || t.answers >= answersMost {
		return false
	}
	p.replied = now
	t.answers++
	return true
}

func (t *table) hurryIfComplete(p *peer, now time.Time) {
	if !p.began.IsZero() && p.search == nil && p.complete() {
		t.hurry(p, now)
	}
}

// hurry makes the next step of a peer due.
func (t *table) hurry(p *peer, now time.Time) {
	p.due = now
	heap.Fix(&t.queue, p.place)
}
