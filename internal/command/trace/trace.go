// Package trace says what becomes of one packet, hop by hop, without sending it: which routes it takes in a container
// and on the host, which links and bridges it passes, what the packet filter does with it and how it is translated,
// and where it ends. Live also sends it, and has nf_tables say what happened. `fairlead trace`
// prints the answer, and `fairlead doctor` makes findings of it.
//
// Each question is put to the kernel, or answered from what the kernel says that there is. What is not known (a
// neighbour that was never asked, a rule that throws dice) stays so: the packet is followed as if it went on, and the
// verdict is Unknown unless something stops it for certain.
package trace

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// A Container is a network namespace that packets may come from or go to.
type Container struct {
	Name  string // for people
	Netns string // a path

	Addr netip.Addr // that it has; needed only where this program may not enter Netns
}

// A Question is a packet that may be sent.
type Question struct {
	From *Container // the sender; nil: the host itself, or one outside where In is given

	In      string     // the link of the host that it comes in by
	Src     netip.Addr // of one that comes in; invalid: not known
	Dst     netip.Addr
	Proto   byte // kernel.TCP, …
	DstPort uint16

	Inner *packetfilter.Packet // it is of VXLAN, and carries this one
	VNI   uint32               // of VXLAN: the network identifier
}

// A Tracer looks at a host and the containers on it.
type Tracer struct {
	Host       *kernel.NS
	Containers []Container
	Holder     func(inode uint32) string // names the process that has a socket

	// Wanted is what the containers' networks want of the host and of them; nil where it is not known.
	Wanted Wanted
}

// Wanted says what networks want, for packets that meet something else.
type Wanted interface {
	Masquerades(src, dst netip.Addr) bool // a network translates the source
	// of the default route in the namespace that has this path
	Gateway(container string, six bool) netip.Addr
	Publisher(dst netip.Addr, proto byte, port uint16) string // names the container that publishes a port of the host
	// names the network that has the address on another node, while the host has no route to it
	Unrouted(dst netip.Addr) string
}

// A State says what becomes of the packet at a hop, or at the end.
type State string

// What becomes of it.
const (
	Passes  State = "passes"
	Stops   State = "stops"
	Unknown State = "unknown"
)

// A Hop is one decision about the packet.
type Hop struct {
	Node  string `json:"node,omitempty"` // of a cluster; empty: this one
	Place string `json:"place"`          // host, or the container
	// route, filter, translation, link, tunnel, neighbour, bridge, socket, program, disagreement, note
	Kind  string `json:"kind"`
	Text  string `json:"text"`
	State State  `json:"state"`

	Hook     string `json:"hook,omitempty"`     // of a filter or translation
	Chain    string `json:"chain,omitempty"`    // the base chain, as nft(8) names it
	Decision string `json:"decision,omitempty"` // what decides there: a rule by its handle, or the policy
	Observed string `json:"observed,omitempty"` // what Live saw there
	Differs  bool   `json:"differs,omitempty"`  // and that it is something else

	Verdict *packetfilter.Verdict `json:"-"`
	Netns   string                `json:"-"` // of Place, a path; empty for the host
	Out     string                `json:"-"` // the link of Place by which the packet leaves it, or would
	Exact   bool                  `json:"-"` // Decision is for certain
}

// An Answer is the way of a packet, and its end.
type Answer struct {
	Packet  string `json:"packet"`
	Hops    []Hop  `json:"hops"`
	Verdict State  `json:"verdict"` // Passes: it arrives; of Live, what was seen
	Why     string `json:"why"`
	Advice

	Seen    State  `json:"seen,omitempty"` // what became of the packet that Live sent
	Result  string `json:"live,omitempty"` // that in words
	Differs bool   `json:"differs,omitempty"`

	Left     *packetfilter.Packet `json:"-"` // as it leaves the host, or enters a tunnel; nil: it does not
	decisive *Hop                 // what Why says
}

// Decisive is the filter that the verdict rests on, and nil if it is none.
func (a *Answer) Decisive() *Hop {
	if h := a.decisive; h != nil && h.Verdict != nil && h.State == a.Verdict {
		return h
	}
	return nil
}

// A place is a network namespace on the way.
type place struct {
	ns    *kernel.NS
	name  string
	netns string // its path; empty for the host
}

// sysctl is a value of the place; empty where it cannot be read.
func (p *place) sysctl(key string) string {
	v, _ := procsys.Get(p.ns, key)
	return v
}

// A walk is a packet on its way.
type walk struct {
	*Tracer
	*Answer
	p      packetfilter.Packet
	opened []*place // containers
	steps  int

	passages []passage // of Live

	firstUnknown *Hop
	advice       Advice // of it

	known        *rtnl.Neighbour // what the sender knows of the next hop
	nextHops     []nextHop       // of Ethernet
	replyDropped string          // why no answer comes back
	unknownDst   bool            // where it goes is not known any more
}

// A nextHop is one on a link of a place.
type nextHop struct {
	at   *place
	link *rtnl.Link
	next netip.Addr
}

// Trace says what becomes of a packet.
func (t *Tracer) Trace(q Question) (*Answer, error) {
	w := &walk{Tracer: t, Answer: &Answer{Hops: []Hop{}}}
	defer w.close()
	return w.Answer, w.begin(q)
}

func (w *walk) begin(q Question) error {
	w.p = packetfilter.Packet{Src: q.Src, Dst: q.Dst, Proto: q.Proto, DstPort: q.DstPort, Inner: q.Inner, VNI: q.VNI}
	host := &place{ns: w.Host, name: "host"}
	defer w.finish()
	switch {
	case q.From != nil:
		from, err := w.open(*q.From)
		if err != nil {
			return err
		}
		w.send(from)
	case q.In == "":
		w.send(host)
	default:
		l, err := rtnl.LinkByName(w.Host, q.In)
		if err != nil {
			return err
		}
		if err := w.chooseSource(host, l); err != nil {
			return err
		}
		w.Packet = w.p.String()
		w.answersOutside(host, l, w.p.Dst)
		w.enter(host, l, netip.Addr{})
	}
	return nil
}

// finish makes an end of what has none.
func (w *walk) finish() {
	switch {
	case w.Verdict == Stops:
	case w.replyDropped != "":
		w.Verdict, w.Why, w.decisive = Stops, w.replyDropped, nil
	case w.firstUnknown != nil:
		w.Verdict, w.Advice, w.decisive = Unknown, w.advice, w.firstUnknown
		w.Why = w.decisive.Place + ": " + w.decisive.Text
	case w.Verdict == "":
		w.Verdict, w.Why = Unknown, "its way could not be followed"
	}
}

func (w *walk) open(c Container) (*place, error) {
	for _, p := range w.opened {
		if p.netns == c.Netns {
			return p, nil
		}
	}
	ns, err := w.Host.Enter(c.Netns)
	if err == nil {
		if err = ns.Do(func() error { return nil }); err != nil {
			ns.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", c.Name, err)
	}
	p := &place{ns, c.Name, c.Netns}
	w.opened = append(w.opened, p)
	return p, nil
}

func (w *walk) close() {
	for _, p := range w.opened {
		p.ns.Close()
	}
}

// record appends a hop.
func (w *walk) record(p *place, kind string, state State, format string, args ...any) Hop {
	w.Hops = append(w.Hops, Hop{Place: p.name, Netns: p.netns, Kind: kind, Text: fmt.Sprintf(format, args...),
		State: state})
	return *w.last()
}

// last is the hop that was recorded last.
func (w *walk) last() *Hop { return &w.Hops[len(w.Hops)-1] }

// pass records a hop that the packet passes.
func (w *walk) pass(p *place, kind, format string, args ...any) {
	w.record(p, kind, Passes, format, args...)
}

// arrive records the hop where the packet arrives.
func (w *walk) arrive(p *place, kind, format string, args ...any) {
	w.Verdict, w.Why = Passes, p.name+": "+w.record(p, kind, Passes, format, args...).Text
}

// stop records the hop where the packet stops. The advice is for the place.
func (w *walk) stop(p *place, kind string, advice Advice, format string, args ...any) {
	w.Verdict, w.Why = Stops, p.name+": "+w.record(p, kind, Stops, format, args...).Text
	w.Advice = advice.In(p.netns)
}

// unknown records a hop of which it is not known whether the packet passes it. The advice is for the place.
func (w *walk) unknown(p *place, kind string, advice Advice, format string, args ...any) {
	h := w.record(p, kind, Unknown, format, args...)
	if w.firstUnknown == nil {
		w.firstUnknown, w.advice = &h, advice.In(p.netns)
	}
}

// filter asks all chains at a hook, takes their verdicts down, and reports whether the packet goes on.
func (w *walk) filter(p *place, hook int, bridge bool) bool {
	ask, name := packetfilter.Through, hookName(hook)
	if bridge {
		ask, name = packetfilter.ThroughBridge, "bridge "+name
	}
	verdicts, after, err := ask(p.ns, hook, w.p)
	if err != nil {
		w.unknown(p, "filter", Advice{}, "%s: the packet filter could not be read: %v", name, err)
		return true
	}
	for _, v := range verdicts {
		h := hopOf(p, name, v)
		w.Hops = append(w.Hops, h)
		switch {
		case v.Outcome == packetfilter.Dropped:
			w.Verdict, w.Why, w.decisive = Stops, p.name+": "+name+": "+v.String(), &h
			return false
		case v.Outcome == packetfilter.Undecided && w.firstUnknown == nil:
			w.firstUnknown = &h
		}
		if v.To.Unknown != "" {
			return false
		}
	}
	w.p = after
	return true
}

// hopOf is a verdict as a hop.
func hopOf(p *place, hook string, v packetfilter.Verdict) Hop {
	h := Hop{Place: p.name, Netns: p.netns, Kind: "filter", Hook: hook, State: Passes, Verdict: &v, Exact: v.Exact,
		Chain: v.Chain.TableName() + " " + v.Chain.Name, Decision: decision(v)}
	if v.Legacy {
		h.Exact = false // nf_tables' trace does not show it
	}
	where := h.Chain
	if v.Jumped != "" && v.Jumped != v.Chain.Name {
		where += " > " + v.Jumped
	}
	if v.Owner != "" && !v.Chain.Own() {
		where += " (" + v.Owner + ")"
	}
	switch v.Outcome {
	case packetfilter.Accepted:
		by := "by policy"
		if v.Rule != "" {
			by = "by rule: " + v.Rule
		} else if !v.Exact {
			by = "by one of several rules or by policy"
		}
		h.Text = fmt.Sprintf("%s: %s accepts %s", hook, where, by)
	case packetfilter.Translated:
		h.Kind = "translation"
		h.Text = fmt.Sprintf("%s: %s: %s, by rule: %s", hook, where, v.To, v.Rule)
	case packetfilter.Dropped:
		h.State, h.Text = Stops, fmt.Sprintf("%s: %v", hook, v)
	default:
		h.State, h.Exact, h.Text = Unknown, false, fmt.Sprintf("%s: cannot tell: %v", hook, v)
	}
	return h
}

// decision is what decides in a base chain: "accept by filter FORWARD handle 5", "drop by policy".
func decision(v packetfilter.Verdict) string {
	word := map[packetfilter.Outcome]string{packetfilter.Dropped: "drop", packetfilter.Undecided: "unknown"}[v.Outcome]
	if word = cmp.Or(word, "accept"); v.Number == 0 {
		return word + " by policy"
	}
	return fmt.Sprintf("%s by %s handle %d", word, v.Jumped, v.Number)
}

func hookName(hook int) string {
	return [...]string{packetfilter.Prerouting: "prerouting", packetfilter.Input: "input",
		packetfilter.Forward: "forward",
		packetfilter.Output:  "output", packetfilter.Postrouting: "postrouting"}[hook]
}
