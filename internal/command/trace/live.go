package trace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
)

const (
	answerTime = 900 * time.Millisecond // TCP sends its first packet again after a second
	quietTime  = 20 * time.Millisecond  // to listen in one place
)

// A passage is where the packet is expected to be seen.
type passage struct {
	at  *place
	pkt packetfilter.Packet
}

// Live is Trace, and sends the packet and follows it with nf_tables' own trace, in all namespaces that it is foreseen
// to pass. It cannot send it from outside: Question.In is refused.
func (t *Tracer) Live(ctx context.Context, q Question) (*Answer, error) {
	w := &walk{Tracer: t, Answer: &Answer{Hops: []Hop{}}}
	defer w.close()
	if q.In != "" {
		return nil, errors.New("a packet from outside cannot be sent from here")
	}
	if err := w.begin(q); err != nil {
		return nil, err
	}
	return w.Answer, w.live(ctx, q)
}

func (w *walk) live(ctx context.Context, q Question) (err error) {
	s, err := w.newShot(ctx, q)
	if err != nil {
		return err
	}
	traces := map[string]*nft.Tracer{} // by the place's netns
	defer func() {
		for _, t := range traces {
			err = errors.Join(err, t.Close())
		}
	}()
	for _, at := range w.passages {
		if traces[at.at.netns] != nil {
			continue
		}
		if traces[at.at.netns], err = nft.Trace(at.at.ns, w.matches(at.at, s)); err != nil {
			delete(traces, at.at.netns)
			return fmt.Errorf("%s: %w", at.at.name, err)
		}
	}
	sender := w.passages[0].at
	steps, err := s.sendFrom(sender, traces)
	if err != nil {
		return err
	}
	if first := steps[sender.netns]; s.number == 0 && len(first) > 0 { // of TCP the sender's first step tells
		s.number = first[0].Number
	}
	seen := map[string][]observed{}
	for netns, t := range traces {
		seen[netns] = group(t, steps[netns], s.number)
	}
	w.compare(seen)
	w.outcome(seen, s.answer, s.said)
	w.judge()
	return ctx.Err()
}

// sendFrom sends the packet from a place, and hears what is done with it everywhere until there is an answer, a drop or
// nothing for long.
func (s *shot) sendFrom(p *place, traces map[string]*nft.Tracer) (map[string][]nft.Step, error) {
	var cancel func()
	s.ctx, cancel = context.WithTimeout(s.ctx, answerTime)
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- p.ns.Do(func() error { s.answer, s.said = s.send(); return nil }) }()
	steps := map[string][]nft.Step{}
	for finished := false; ; {
		select {
		case err := <-sent:
			if finished = true; err != nil {
				return nil, err
			}
		default:
		}
		heard := false
		for netns, t := range traces {
			more, err := t.Steps(quietTime)
			if err != nil {
				cancel()
				if !finished {
					<-sent
				}
				return nil, err
			}
			steps[netns], heard = append(steps[netns], more...), heard || len(more) > 0
			if slices.ContainsFunc(more, func(s nft.Step) bool { return s.Verdict == 0 }) {
				cancel() // nothing will come of it; a rejection has answered by now
			}
		}
		if finished && !heard {
			return steps, nil
		}
	}
}

// matches are the packets to look for at a place: those of the sender by their port, others by where they go.
func (w *walk) matches(p *place, s *shot) (all []nft.Traced) {
	for _, at := range w.passages {
		if at.at.netns != p.netns {
			continue
		}
		m := nft.Traced{Dst: at.pkt.Dst, Proto: at.pkt.Proto, DstPort: at.pkt.DstPort}
		if at.pkt.Local {
			m.SrcPort = s.port
		}
		if !slices.Contains(all, m) {
			all = append(all, m)
		}
	}
	return all
}

// An observed is what was seen of one base chain.
type observed struct {
	chain, decision string
	drops, own      bool
	taken           bool // it was foreseen
}

// sentBefore reports whether o is the same as before, a foreseen passage: TCP sends its first packet again where the
// answer is late.
func (o observed) sentBefore(before observed) bool {
	return before.taken && before.chain == o.chain && before.decision == o.decision
}

// group puts the steps of each base chain together that are of one packet.
func group(t *nft.Tracer, steps []nft.Step, number uint32) (all []observed) {
	var first *nft.Step
	for i := range steps {
		s := &steps[i]
		if first == nil {
			first = s
		}
		if s.Verdict < 0 { // on to another rule or chain
			continue
		}
		table := nft.BaseChain{Family: first.Family, Table: first.Table}.TableName()
		o := observed{chain: table + " " + first.Chain, drops: s.Verdict == 0, own: t.Own(*first)}
		word := "accept"
		if o.drops {
			word = "drop"
		} else if s.Verdict > 1 {
			word = fmt.Sprintf("verdict %d", s.Verdict)
		}
		o.decision = word + " by policy"
		if s.Handle != 0 {
			o.decision = fmt.Sprintf("%s by %s handle %d", word, s.Chain, s.Handle)
		}
		if same := first.Number == number || number == 0; same {
			all = append(all, o)
		}
		first = nil
	}
	return all
}

// compare sets what was seen beside what was foreseen.
func (w *walk) compare(seen map[string][]observed) {
	netns := map[string]string{"host": ""}
	for _, p := range w.opened {
		netns[p.name] = p.netns
	}
	dropped := false // by a chain whose verdict was unknown
	for i := range w.Hops {
		h := &w.Hops[i]
		if h.Hook == "" || h.Verdict.Legacy || h.Verdict.Packet.Inner != nil || dropped {
			continue
		}
		list := seen[netns[h.Place]]
		j := slices.IndexFunc(list, func(o observed) bool { return !o.taken && o.chain == h.Chain })
		if j < 0 {
			h.Observed, h.Differs = "the packet did not come here", true
			continue
		}
		o := &list[j]
		o.taken, h.Observed = true, o.decision
		before, _, _ := strings.Cut(h.Decision, " ")
		after, _, _ := strings.Cut(o.decision, " ")
		switch {
		case h.State == Unknown:
			dropped = o.drops
		case h.Exact:
			h.Differs = h.Decision != o.decision
		default:
			h.Differs = before != after
		}
	}
	for name, path := range netns {
		for _, o := range seen[path] {
			if o.taken || o.own || slices.ContainsFunc(seen[path], o.sentBefore) {
				continue
			}
			state := Passes
			if o.drops {
				state = Stops
			}
			w.Hops = append(w.Hops, Hop{Place: name, Kind: "filter", State: state, Chain: o.chain, Observed: o.decision,
				Differs: true, Text: o.chain + " was not foreseen"})
		}
	}
	w.Differs = slices.ContainsFunc(w.Hops, func(h Hop) bool { return h.Differs })
}

// outcome says what became of the packet that was sent.
func (w *walk) outcome(seen map[string][]observed, answer State, said string) {
	w.Seen, w.Result = answer, said
	if answer == Unknown {
		for _, at := range w.passages {
			for _, o := range seen[at.at.netns] {
				if o.drops {
					w.Seen, w.Result = Stops, fmt.Sprintf("%s; %s: %s: %s", said, at.at.name, o.chain, o.decision)
				}
			}
		}
	}
	for _, k := range w.nextHops {
		if n := w.neighbour(k.at, k.link, k.next); w.Seen == Unknown && (n == nil || len(n.MAC) == 0) {
			w.Seen, w.Result = Stops,
				fmt.Sprintf("%s; %v does not answer on %s of %s: its MAC address is not known", said, k.next,
					k.link.Name, k.at.name)
		}
	}
	last := len(w.passages) - 1
	if w.Seen == Unknown && last > 0 && w.Verdict == Passes && w.last().Kind == "socket" {
		input := func(o observed) bool { return o.own && strings.HasSuffix(o.chain, " input") }
		if slices.ContainsFunc(seen[w.passages[last].at.netns], input) {
			w.Seen, w.Result = Passes, said+", but the packet came to "+w.passages[last].at.name
		}
	}
	sight := len(w.Hops) > 0 && w.last().Kind == "socket" // the end could be looked at
	w.Differs = w.Differs || sight && w.Verdict == Passes && w.Seen == Stops || w.Verdict == Stops && w.Seen == Passes
}

// judge has the verdict rest on what was seen, where that is more than was predicted, or something else.
func (w *walk) judge() {
	switch predicted := w.Result + "; predicted: " + w.Why; {
	case w.Seen == w.Verdict || w.Seen == Unknown && w.Verdict == Stops:
		return
	case w.Seen == Unknown && w.p.Proto == kernel.UDP: // which needs no answer
		w.Verdict, w.Why = Unknown, predicted
	case w.Seen == Unknown:
		w.Verdict, w.Why = Stops, predicted
	case w.Verdict == Unknown:
		w.Verdict, w.Why = w.Seen, w.Result
	default:
		w.Verdict, w.Why = w.Seen, predicted
	}
	w.Advice = Advice{}
}

// A shot is a packet to be sent from the thread's namespace.
type shot struct {
	ctx    context.Context
	proto  byte
	to     netip.AddrPort
	port   uint16 // of the sender
	number uint32 // what the packet is known by, but for TCP, which chooses it itself

	answer State
	said   string
}

func (w *walk) newShot(ctx context.Context, q Question) (*shot, error) {
	s := &shot{ctx: ctx, proto: q.Proto, to: netip.AddrPortFrom(q.Dst, q.DstPort)}
	switch q.Proto {
	case kernel.TCP:
		s.port = uint16(32768 + rand.IntN(28000))
	case kernel.UDP:
		s.port, s.number = uint16(32768+rand.IntN(28000)), uint32(8+16+rand.IntN(400))
	case kernel.ICMP, kernel.ICMPv6:
		s.number = uint32(1 + rand.IntN(65535))
	default:
		return nil, fmt.Errorf("--live sends TCP, UDP and ICMP, and not protocol %s", kernel.ProtoName(q.Proto))
	}
	return s, nil
}

// send sends it, and says what came of it.
func (s *shot) send() (State, string) {
	var err error
	switch s.proto {
	case kernel.TCP:
		var conn net.Conn
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: int(s.port)}}
		if conn, err = dialer.DialContext(s.ctx, "tcp", s.to.String()); err == nil {
			conn.Close()
			return Passes, "the connection was made"
		}
	case kernel.UDP:
		err = s.datagram()
	default:
		err = Echo(s.ctx, s.to.Addr(), uint16(s.number), 0)
	}
	var number syscall.Errno
	timeout := (net.Error)(nil)
	switch {
	case err == nil:
		return Passes, "an answer came"
	case s.ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return Unknown, "no answer came"
	case errors.As(err, &number):
		return Stops, "the answer was: " + number.Error()
	}
	return Unknown, err.Error()
}

func (s *shot) datagram() error {
	conn, err := net.DialUDP("udp", &net.UDPAddr{Port: int(s.port)}, net.UDPAddrFromAddrPort(s.to))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(make([]byte, s.number-8)); err != nil {
		return err
	}
	defer context.AfterFunc(s.ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	_, err = conn.Read(make([]byte, 1500))
	return err
}
