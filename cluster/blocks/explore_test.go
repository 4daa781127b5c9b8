package blocks

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"testing"
)

// violation says what is wrong in a state; empty: nothing.
func (w *world) violation() string {
	if s := w.held(); s != "" {
		return s
	}
	if w.wrong == leaseOnBlock || w.wrong == putAgain { // which write one of the two entries
		return ""
	}
	return w.index()
}

// A report is what an exploration found.
type report struct {
	states, drained, depth int
	broken                 string
	trace                  []move
}

// known has how a state was reached.
type known struct {
	from  int
	by    move
	depth int
}

// explore goes through all states that can be reached, or the first so many, in the order of their distance. Of one
// in so many states it also looks whether everything comes back from there.
func explore(e *env, most, drainEvery int) report {
	seed := maphash.MakeSeed()
	worlds := []*world{newWorld(e)}
	ways := []known{{from: -1}}
	var enc encoder
	hashes := []uint64{worlds[0].hash(&enc, seed)}
	seen := map[uint64]bool{hashes[0]: true}
	r := report{}
	fail := func(n int, why string) report {
		r.broken, r.states = why, len(worlds)
		for ; ways[n].from >= 0; n = ways[n].from {
			r.trace = append([]move{ways[n].by}, r.trace...)
		}
		return r
	}
	for n := 0; n < len(worlds); n++ {
		w := worlds[n]
		r.depth = ways[n].depth
		if why := w.violation(); why != "" {
			return fail(n, why)
		}
		if drainEvery > 0 && hashes[n]%uint64(drainEvery) == 0 {
			r.drained++
			if why := cmp.Or(w.drain(), w.unserved()); why != "" {
				return fail(n, why)
			}
		}
		for _, m := range w.moves() {
			if len(worlds) >= most {
				break
			}
			c := w.clone()
			c.do(m)
			if h := c.hash(&enc, seed); !seen[h] {
				seen[h] = true
				hashes = append(hashes, h)
				worlds = append(worlds, c)
				ways = append(ways, known{from: n, by: m, depth: ways[n].depth + 1})
			}
		}
		worlds[n] = nil
	}
	r.states = len(worlds)
	return r
}

// walk goes a way of so many steps by chance.
func walk(e *env, seed uint64, steps int) report {
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(e)
	r := report{}
	for range steps {
		moves := w.moves()
		if len(moves) == 0 {
			break
		}
		m := moves[random.IntN(len(moves))]
		if m.kind >= fault && random.IntN(3) > 0 { // faults are rarer than what goes on by itself
			continue
		}
		w.do(m)
		r.trace = append(r.trace, m)
		r.states++
		if r.broken = w.violation(); r.broken != "" {
			return r
		}
	}
	r.broken = w.drain()
	return r
}

// drain lets everything end: no more faults, all machines run, no node wants blocks. It says what does not come back.
func (w *world) drain() string {
	w = w.clone()
	w.limbo = nil
	for i := range w.machines {
		m := &w.machines[i]
		m.on = true
		m.want = 0
		if m.agent != nil {
			w.want(m)
		}
		for m.containers != 0 {
			w.do(move{del, int8(i), 0})
		}
		m.leases = 0
	}
	if why := w.settle(); why != "" {
		return why
	}
	for i := range w.machines { // what is refused is off, and an administrator forgets it
		m := &w.machines[i]
		if m.agent == nil || m.agent.refusal == nil {
			continue
		}
		if !m.harmed {
			return fmt.Sprintf("lost: machine %d, to which nothing happened, is refused: %+v", i, *m.agent.refusal)
		}
		for j := range w.machines {
			if w.machines[j].node == m.node {
				w.kill(&w.machines[j])
				w.machines[j].on = false
			}
		}
		if w.mayForget(m) {
			w.do(move{forget, int8(i), 0})
		}
	}
	if why := w.settle(); why != "" {
		return why
	}
	for _, e := range w.store.entries {
		if e.Key.Kind == BlockKey || e.Key.Kind == MineKey {
			return fmt.Sprintf("lost for good: %v of %v, though nobody wants anything", e.Key, e.Value.Owners)
		}
		if e.Key.Kind == ReadoptKey {
			return "lost: the readoption does not end, so nobody claims anything"
		}
	}
	return ""
}

// settle lets all agents and the administrator do what they have to do, in turns, until there is nothing. Agents
// look at the store again when nothing else is to be done.
func (w *world) settle() string {
	for n := range 300 {
		var does, looks []move
		for _, m := range w.moves() {
			switch {
			case m.kind == changed:
				looks = append(looks, m)
			case m.kind < changed || m.kind == bury || m.kind == conclude || m.kind == readopt:
				does = append(does, m)
			}
		}
		if len(does) == 0 {
			does = looks
		}
		if len(does) == 0 {
			return ""
		}
		w.do(does[n%len(does)])
		if why := w.held(); why != "" {
			return why
		}
	}
	return "lost: the agents do not come to rest"
}

// lines is a way, for people.
func (r report) lines(e *env) string {
	var b strings.Builder
	w := newWorld(e)
	for n, m := range r.trace {
		w.moves() // asks each owner what is next
		fmt.Fprintf(&b, "%3d %s\n", n+1, w.describe(m))
		w.do(m)
	}
	return b.String() + "    → " + r.broken
}

func show(t *testing.T, e *env, r report) {
	t.Helper()
	t.Errorf("after %d states:\n%s", r.states, r.lines(e))
}
