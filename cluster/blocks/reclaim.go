package blocks

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/spelling"
)

// A pool can have a time after which the blocks of a node that is not heard go to others (Pool.Reclaim). A node with such
// blocks writes a beat from time to time. It allocates nothing later than nine tenths of the time after it sent the last
// beat that the store confirmed. Another node takes its blocks the whole time after it first saw that beat. Each measures
// with its own clock, so clocks have to agree on how long the time is, to a twentieth, and on nothing else.

// A Delay is the time after which a silent node loses its blocks of a pool. Zero: an operator alone takes them.
type Delay time.Duration

// The bounds of a delay.
const (
	LeastDelay = Delay(time.Hour)
	mostDelay  = Delay(365 * 24 * time.Hour)
)

const manual = "manual"

// MarshalText implements encoding.TextMarshaler.
func (d Delay) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Delay) String() string {
	if d == 0 {
		return manual
	}
	text := strings.Replace(time.Duration(d).String(), "m0s", "m", 1)
	return strings.Replace(text, "h0m", "h", 1)
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Delay) UnmarshalText(text []byte) error {
	if string(text) == manual {
		*d = 0
		return nil
	}
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("reclaim: %q: want %s", text, wantDelay)
	}
	*d = Delay(parsed)
	return nil
}

const wantDelay = manual + ", or a time from 1h to 8760h such as 2h30m"

func (d Delay) validate() error {
	if d != 0 && (d < LeastDelay || d > mostDelay) {
		return fmt.Errorf("reclaim: %v: want %s", d, wantDelay)
	}
	return nil
}

// Kept is how long after a beat a node allocates.
func (d Delay) Kept() int64 { return int64(d) * 9 / 10 }

// Pause is the time between beats.
func (d Delay) Pause() int64 { return max(1, int64(d)/20) }

// A Fence is what a node does with containers of a pool at its deadline. Empty: they go on, and the administrator has to end them.
type Fence string

// Drop has the node's kernel drop all packets from and to them.
const Drop Fence = "drop"

// noFence is what people write for an empty Fence.
const noFence = "none"

// ParseFence reads what String writes.
func ParseFence(text string) (Fence, error) {
	if text == noFence {
		return "", nil
	}
	if text == "" {
		return "", fmt.Errorf("fence: %q: want %s", text, wantFence)
	}
	return Fence(text), Fence(text).validate()
}

const wantFence = string(Drop) + " or " + noFence

func (f Fence) String() string { return cmp.Or(string(f), noFence) }

func (f Fence) validate() error {
	if f == "" || f == Drop {
		return nil
	}
	if near, ok := spelling.Nearest(string(f), []string{string(Drop), noFence}); ok {
		return fmt.Errorf("fence: %q: want %s; did you mean %q?", string(f), wantFence, near)
	}
	return fmt.Errorf("fence: %q: want %s", string(f), wantFence)
}

// Deadlines are when a node stops to allocate from pools, by their names, as [Owner.Time] has times. A pool that is
// missing has none.
type Deadlines map[string]int64

// A promise is what a beat says: after which time others may take the node's blocks of which pools.
type promise map[string]Delay

// A beat is one that the store confirmed, or may have got.
type beat struct {
	at int64 // when it was sent, or earlier
	promise
}

// Time says what time it is: nanoseconds of a clock of this machine that goes on while the machine sleeps, and that a boot
// sets back at most together with the grant.
func (o *Owner) Time(now int64) { o.now = now }

// Resume says which deadlines the grant of this boot has.
func (o *Owner) Resume(d Deadlines) { o.deadlines, o.sure = d, d }

// NextBeat returns when the node has to be heard again. Zero: never.
func (o *Owner) NextBeat() int64 {
	if o.said == nil || len(o.said.promise) == 0 {
		return 0
	}
	return o.said.at + slices.Min(slices.Collect(maps.Values(o.said.promise))).Pause()
}

// promises returns what a beat has to say, of a node that also has some holdings.
func (o *Owner) promises(more ...Holding) promise {
	p := promise{}
	for _, h := range slices.Concat(o.granted, o.view.mine, more) {
		if of, known := o.pool(h.Pool); known && of.Reclaim != 0 {
			p[h.Pool] = of.Reclaim
		}
	}
	return p
}

// say has the node be heard, if it is time. Of what the store says after it was restored, a node whose time is over knows
// nothing: others may have its blocks.
func (o *Owner) say() *step {
	p := o.promises()
	isNews := o.said == nil && len(p)+len(o.sure) > 0 || o.said != nil && !maps.Equal(p, o.said.promise)
	isDue := len(p) > 0 && o.now >= o.NextBeat()
	if !isNews && !isDue || o.view.readopt.Revision != 0 && o.isLate() {
		return nil
	}
	if s := o.keepTo(p); s != nil {
		return s
	}
	t := Txn{If: []Compare{{o.epochKey(), o.view.epoch.Revision}, {Key{Kind: ReadoptKey}, o.view.readopt.Revision}}}
	t.setBeat(o.journal.Node, p)
	return &step{action: t, kind: say, beat: &beat{o.now, p}}
}

// isLate reports whether the node may not allocate from a pool any more.
func (o *Owner) isLate() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(o.sure)), func(d int64) bool { return o.now >= d })
}

// keepTo has the grant keep what a beat is about to promise.
func (o *Owner) keepTo(p promise) *step {
	sooner := maps.Clone(o.sure)
	if sooner == nil {
		sooner = Deadlines{}
	}
	for pool, delay := range p {
		end := o.now + delay.Kept()
		if was, has := sooner[pool]; !has || was > end {
			sooner[pool] = end
		}
	}
	o.sure = sooner
	return o.publishDeadlines()
}

// publishDeadlines has the grant say how long the node may allocate.
func (o *Owner) publishDeadlines() *step {
	if maps.Equal(o.deadlines, o.sure) {
		return nil
	}
	return o.publish(o.granted)
}

// confirmBeat takes a beat that the store confirmed.
func (o *Owner) confirmBeat(b *beat) {
	o.said, o.sure = b, Deadlines{}
	for pool, delay := range b.promise {
		o.sure[pool] = b.at + delay.Kept()
	}
}

func (t *Txn) setBeat(node string, p promise) {
	k := Key{Kind: BeatKey, Node: node}
	if len(p) > 0 {
		t.Put = append(t.Put, Pair{k, Value{Beat: p}})
	} else {
		t.Delete = append(t.Delete, k)
	}
}

// isReclaimed reports whether blocks of this node were taken since its epoch began.
func (o *Owner) isReclaimed() bool {
	e := o.view.epoch.Value.Epoch
	return e != nil && e.Reclaimed && e.N > o.journal.Epoch
}

// dropReclaimed takes out of the grant what others may have by now, whether it has leases or not.
func (o *Owner) dropReclaimed() *step {
	kept := holdings(o.granted)
	for lost := kept.minus(o.view.mine); lost.Parts != 0; lost = kept.minus(o.view.mine) {
		kept = kept.without(lost)
	}
	return o.publish(kept)
}

// A silence is how long a node was not heard, as another one sees it.
type silence struct {
	beat   Entry
	config int64 // revision
	store  string
	since  int64
}

// Silences counts for how long nodes are not heard, by the clock of this machine. It begins anew whenever it could not have
// heard them.
type Silences struct {
	of map[string]silence // by nodes
}

// A Fleet is what the store says of all nodes, as far as it concerns who is silent.
type Fleet struct {
	Store           string
	Config, Readopt Entry
	Beats           []Entry
}

// Reset says that nodes may have been heard in the store without this one's knowledge.
func (s *Silences) Reset() { s.of = nil }

// Forget begins anew for a node.
func (s *Silences) Forget(node string) { delete(s.of, node) }

// Look takes what the store says at a time.
func (s *Silences) Look(now int64, f Fleet) {
	next := map[string]silence{}
	isOfStore := f.Config.Value.Config != nil && f.Config.Value.Config.Store == f.Store
	for _, b := range f.Beats {
		if f.Readopt.Revision != 0 || !isOfStore {
			break
		}
		is := silence{b, f.Config.Revision, f.Store, now}
		was, known := s.of[b.Key.Node]
		if known && was.beat.Revision == b.Revision && was.config == is.config && was.store == is.store {
			is.since = was.since
		}
		next[b.Key.Node] = is
	}
	s.of = next
}

// Left returns in which time a node loses its blocks of a pool, at a time. Ok is false if it does not.
func (s *Silences) Left(now int64, node string, p Pool) (left int64, ok bool) {
	is, known := s.of[node]
	promised := is.beat.Value.Beat[p.Name]
	if !known || promised == 0 || p.Reclaim == 0 {
		return 0, false
	}
	return max(0, is.since+int64(max(promised, p.Reclaim))-now), true
}

// Reclaim returns the transaction that takes blocks of pools from a node that was silent for long enough, unless it was heard
// meanwhile. It does to them what [Bury] does. The node goes on with another epoch, and finds that the blocks are not its own.
func (s *Silences) Reclaim(epoch Entry, all []Entry) Txn {
	is := s.of[epoch.Key.Node]
	e := *epoch.Value.Epoch
	e.N++
	e.Reclaimed = true
	t := Txn{
		If: []Compare{{epoch.Key, epoch.Revision}, {is.beat.Key, is.beat.Revision}, {Key{Kind: ConfigKey}, is.config},
			{Key{Kind: ReadoptKey}, 0}},
		Put: []Pair{{epoch.Key, Value{Epoch: &e}}},
	}
	for _, block := range all[:min(len(all), MostAtOnce)] {
		one := Bury(epoch.Key.Node, block)
		t.If, t.Put, t.Delete = append(t.If, one.If...), append(t.Put, one.Put...), append(t.Delete, one.Delete...)
	}
	return t
}
