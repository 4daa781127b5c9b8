package main

import (
	"math/rand/v2"
	"testing"
)

// Duels interrupt either call before each step on what the other one uses, once, and then both in each pair of such places.
func TestDuelPlaces(t *testing.T) {
	k := newKnown()
	of := &script{attached: []string{"c1"}, actors: []actor{{"add-c2", "add", "c2", ""}, {"del-c1", "del", "c1", ""}}}
	next := func() *schedule {
		players := []*player{newPlayer(of.actors[0], false), newPlayer(of.actors[1], false)}
		return newSchedule(players, rand.New(rand.NewPCG(1, 2)), &k, of)
	}
	first := next()
	if len(first.moments) > 0 || first.untried == 0 {
		t.Errorf("before anything is known: %d moments, %d untried", len(first.moments), first.untried)
	}

	adds, deletes := first.players[0], first.players[1]
	adds.crucial = map[string][]string{"link /lease 1": {"/lease"}, "lock /lock 1": {"/lock"}, "rename /result 1": {"/result"},
		"newsetelem known 1": {"known"}}
	deletes.crucial = map[string][]string{"lock /lock 1": {"/lock"}, "delsetelem known 1": {"known"}}
	for _, each := range first.players {
		for _, objects := range each.crucial {
			each.used[objects[0]] = true
		}
	}
	deletes.read.Store("/lease", true)
	first.tell(&k)

	const single, double = 3, 4 // of ADD the lease and the lock, of DEL the lock
	for n := range single + double {
		s := next()
		want := 1
		if n >= single {
			want = 2
		}
		if len(s.moments) != want {
			t.Errorf("duel %d has %d moments, not %d", n, len(s.moments), want)
		}
		if left := max(0, single-n-1); s.untried != left {
			t.Errorf("after duel %d: %d places are untried, not %d", n, s.untried, left)
		}
	}
	if len(k.Tried) != 1+single+double {
		t.Errorf("tried: %v", k.Tried)
	}
}

// Duels with nothing left to try but pairs are mostly passed over.
func TestPlaysPassOver(t *testing.T) {
	p := plays{chains: []string{"bridge"}, untried: map[string]int{}}
	duels := func(untried int) (n int) {
		for range 200 {
			if s := p.script(); s.kind() != "" {
				p.tell(s, outcome{Untried: untried})
				n++
			}
		}
		return n
	}
	before := duels(1)
	duels(0)
	if after := duels(0); after == 0 || after > before*2/3 {
		t.Errorf("%d of 200 are duels, and %d when nothing is left to try", before, after)
	}
}
