package probe

import (
	"time"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
)

// judge takes what the packets of a test came to. If it does not know how long packets may be, it looks for that first.
func (t *table) judge(p *peer, now time.Time) {
	path := agentstatus.Path{Tested: now, Passed: p.path.Passed, Agents: t.judgeAgents(p)}
	if p.cause != nil {
		path.Cause = p.cause.Error()
	}
	for f := range p.echoes {
		if p.echoes[f][small].bytes == 0 {
			continue
		}
		in := agentstatus.Inside{Family: [families]string{"IPv4", "IPv6"}[f], Size: p.echoes[f][full].bytes,
			Small: p.judgeEcho(f, small), Full: p.judgeEcho(f, full), UDP: p.judgeInner(f, byRoute),
			Link: p.judgeInner(f, byLink)}
		p.short[f] = in.Small == agentstatus.Passed &&
			(in.Full == agentstatus.LostThere || in.Full == agentstatus.Lost)
		isKnown := p.echoes[f][known].answered && !p.echoes[f][beyond].answered
		if in.Full == agentstatus.Passed || p.short[f] && !isKnown {
			p.mtu[f] = 0
		}
		path.Inside = append(path.Inside, in)
	}
	if path.Whole() {
		path.Passed = now
	}
	p.path = path
	t.conclude(p, now)
}

// conclude ends a test, unless full packets of a family do not pass and it is not known which do.
func (t *table) conclude(p *peer, now time.Time) {
	for f := range p.short {
		if p.short[f] && p.mtu[f] == 0 {
			p.search = &searching{family: f, good: smallBytes, bad: p.echoes[f][full].bytes}
			t.narrow(p, now)
			return
		}
	}
	i := 0
	for f := range p.echoes {
		if p.echoes[f][small].bytes != 0 {
			p.path.Inside[i].MTU = p.mtu[f]
			i++
		}
	}
	t.end(p, now)
}

// judgeAgents says whether the datagrams arrive. Those of the peer show one direction, if they came after one of this node
// was lost: a way that is cut carried them before.
func (t *table) judgeAgents(p *peer) agentstatus.Result {
	window := t.every + t.every/5
	switch {
	case p.answered:
		return agentstatus.Passed
	case p.heard.After(p.unanswered) && p.heard.After(p.began.Add(-window)):
		return agentstatus.LostThere
	}
	return agentstatus.Lost
}

// judgeEcho says whether an echo was answered, and else what the peer says of it.
func (p *peer) judgeEcho(f int, s size) agentstatus.Result {
	switch {
	case p.echoes[f][s].answered:
		return agentstatus.Passed
	case p.told.IsZero():
		return agentstatus.Lost
	case p.says[f][s].After(p.began.Add(-recent)):
		return agentstatus.LostBack
	}
	return agentstatus.LostThere
}

// judgeInner says whether the peer says that an inner datagram has arrived. It is empty if none was sent.
func (p *peer) judgeInner(f int, by route) agentstatus.Result {
	switch {
	case !p.sends(f, by):
		return ""
	case p.arrived(f, by):
		return agentstatus.Passed
	case p.told.IsZero():
		return agentstatus.Lost
	}
	return agentstatus.LostThere
}

// end waits for the next test.
func (t *table) end(p *peer, now time.Time) {
	tenth := t.every / 10
	p.due = p.began.Add(t.every - tenth + time.Duration(t.random()%uint64(2*tenth)))
	if p.due.Before(now) {
		p.due = now
	}
	p.silent = p.seen.Before(p.began)
	p.began = time.Time{}
	shortest := 0
	for _, mtu := range p.mtu {
		if mtu >= leastMTU && (shortest == 0 || mtu < shortest) {
			shortest = mtu
		}
	}
	p.path.Seen = p.seen
	t.tested(p.Node, p.path, shortest)
}

// leastMTU is what every host has to be able to receive (RFC 791). A path that does not carry it has another trouble.
const leastMTU = 576

// A searching halves the range of sizes in which the longest packet is that passes.
type searching struct {
	echo
	family    int
	good, bad int // a packet of good bytes passes, one of bad does not
	try       int
}

// narrow takes the answer to the last packet of a search, and sends the next one.
func (t *table) narrow(p *peer, now time.Time) {
	s := p.search
	switch {
	case s.bytes == 0:
	case s.answered:
		s.good, s.bytes = s.bytes, 0
	case s.try == tries:
		s.bad, s.bytes = s.bytes, 0
	}
	if s.bytes == 0 && s.bad-s.good <= 1 {
		p.mtu[s.family], p.search = s.good, nil
		t.conclude(p, now)
		return
	}
	if s.bytes == 0 {
		s.echo, s.try = echo{bytes: (s.good + s.bad) / 2, nonce: t.newNonce()}, 0
	}
	for _, a := range p.Addrs {
		if familyOf(a) == s.family {
			p.note(t.wire.echo(a, s.bytes, echoData{search, s.nonce}))
		}
	}
	s.try++
	p.due = now.Add(wait)
}
