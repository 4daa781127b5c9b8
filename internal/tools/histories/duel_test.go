package main

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// Duels interrupt either call before each step on what the other one uses, once, and both in each pair of such places.
func TestDuelPlaces(t *testing.T) {
	k := newKnown()
	of := &script{attached: []string{"c1"}, actors: []actor{{"add-c2", "add", "c2", ""}, {"del-c1", "del", "c1", ""}}}
	random := rand.New(rand.NewPCG(1, 2))
	next := func() *schedule {
		players := []*player{newPlayer(of.actors[0], false), newPlayer(of.actors[1], false)}
		return newSchedule(players, random, &k, of)
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

	for next().untried > 0 {
	}
	for range 10 {
		next()
	}
	delete(k.Tried, "") // before anything was known
	single, double := 0, 0
	for name, times := range k.Tried {
		switch {
		case strings.Contains(name, ", "):
			double++
		case times == 1:
			single++
		default:
			t.Errorf("%s: %d times", name, times)
		}
	}
	if single != 3 || double != 4 { // of ADD the lease and the lock, of DEL the lock
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
