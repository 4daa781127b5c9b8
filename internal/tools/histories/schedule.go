package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// A schedule decides whose turn is next. There are three kinds, because three kinds of faults are to be found. One changes
// turns often, after some steps. Another one changes them at a few moments only: a call is interrupted before a step, and
// all others go on to their ends meanwhile, as in the probabilistic concurrency testing of Burckhardt et al. (2010). The third
// one does that only before a step that others decide by, on an object that calls of several containers have used.
//
// Duels, which are two calls alone, do not leave that to chance: the first of the two is interrupted before each step on what the
// other one uses, too. Then the second one is interrupted besides, in each such pair of places.
type schedule struct {
	*known
	host    string // how it is before
	players []*player
	random  *rand.Rand
	isDuel  bool
	untried int // places of such a duel

	odds int // one of so many steps gives the turn to another player; 0: by rank
	turn *player

	ranks    map[*player]int // who of those that are ready has the highest goes on
	moments  []moment
	decisive bool            // calls are interrupted before decisive steps alone
	passed   map[*player]int // decisive steps that calls have made
	lowest   int
}

// known is what earlier histories tell.
type known struct {
	Users   map[string]string // by object: the container whose calls have used it, or several
	Lengths map[string]int    // how many decisive steps a call has made at most

	// Of the duels of one kind:
	Steps map[string]map[string][]string // by actor: the crucial steps that it has made, and what they are about
	Used  map[string]map[string]bool     // by actor: the objects of its steps, and what it has read
	Tried map[string]int                 // how often the actors were interrupted there
}

func newKnown() known {
	return known{Users: map[string]string{}, Lengths: map[string]int{}, Steps: map[string]map[string][]string{},
		Used: map[string]map[string]bool{}, Tried: map[string]int{}}
}

// several containers have used an object.
const several = "*"

// A moment is before a step of a call. Then the call goes behind all others, or an event happens.
type moment struct {
	call     *player
	before   string  // the name of the step, or "": it is told by number
	steps    int     // that the call has made before
	decisive bool    // count the decisive steps alone
	change   bool    // not before the next crucial step
	event    *player // nil: the call goes behind
}

func (s *schedule) come(m moment) bool {
	step := m.call.next()
	if m.before != "" {
		return step != nil && step.name == m.before
	}
	if m.decisive {
		return step != nil && s.isDecisive(step) && m.steps <= s.passed[m.call]
	}
	return m.steps <= m.call.steps && (!m.change || step == nil || step.crucial())
}

// lengths are about how many steps calls have, of which about a quarter are decisive.
var lengths = map[string]int{"add": 75, "del": 50, "gc": 60, "repair": 30, "check": 5, daemonVerb: 15, agentVerb: 40}

func newSchedule(players []*player, random *rand.Rand, k *known, of *script) *schedule {
	s := &schedule{known: k, host: of.host(), players: players, random: random, ranks: map[*player]int{},
		passed: map[*player]int{}}
	for i, n := range random.Perm(len(players)) {
		s.ranks[players[i]] = n
	}
	if s.isDuel = of.kind() != ""; s.isDuel {
		s.duel()
		return s
	}
	kind := random.IntN(6)
	if kind == 0 {
		s.odds = []int{2, 4, 8, 16}[random.IntN(4)]
		return s
	}
	var calls []*player
	for _, each := range players {
		if each.args != nil {
			calls = append(calls, each)
		}
	}
	if len(calls) == 0 {
		return s
	}
	s.decisive = kind < 4 && len(k.Users) > 0
	s.interrupt(calls)
	for _, each := range players {
		if each.args == nil {
			s.happen(each, calls)
		}
	}
	return s
}

// tell adds what the schedule's history tells.
func (s *schedule) tell(k *known) {
	if s.isDuel {
		s.tellDuel(k)
		return
	}
	for _, each := range s.players {
		if n := s.passed[each]; n > k.Lengths[s.called(each)] {
			k.Lengths[s.called(each)] = n
		}
		if each.object == "" { // it has to do with all containers
			continue
		}
		for object := range each.used {
			if by := k.Users[object]; by != "" && by != each.object {
				k.Users[object] = several
			} else {
				k.Users[object] = each.object
			}
		}
	}
}

// called is a call of that verb on such a host.
func (s *schedule) called(p *player) string { return s.host + ": " + p.verb }

// interrupt chooses moments of calls.
func (s *schedule) interrupt(calls []*player) {
	times := 1 + s.random.IntN(2*len(calls))
	if s.decisive {
		times = 1 + s.random.IntN(len(calls))
	}
	for range times {
		s.moments = append(s.moments, s.moment(calls[s.random.IntN(len(calls))], nil))
	}
}

// happen chooses the moment of an event.
func (s *schedule) happen(event *player, calls []*player) {
	s.lowest--
	s.ranks[event] = s.lowest // where its moment never comes
	call := calls[s.random.IntN(len(calls))]
	i := slices.IndexFunc(calls, func(c *player) bool { return c.name == event.object })
	if i >= 0 && (calls[i].verb != daemonVerb || s.random.IntN(2) == 0) {
		call = calls[i]
	}
	m := s.moment(call, event)
	switch {
	case i < 0 && s.random.IntN(3) == 0:
		m.steps = 0 // before the call begins
	case event.verb == "room" && s.random.IntN(3) > 0:
		return // as a rule, a disk stays full
	}
	s.moments = append(s.moments, m)
}

func (s *schedule) moment(call, event *player) moment {
	m := moment{call: call, event: event, decisive: s.decisive && event == nil}
	if m.decisive {
		m.steps = s.random.IntN(cmp.Or(s.Lengths[s.called(call)], lengths[call.verb]/4))
	} else {
		m.steps, m.change = 1+s.random.IntN(lengths[call.verb]), s.random.IntN(4) > 0
	}
	return m
}

// next is the one of those who are ready whose turn it is.
func (s *schedule) next(ready []*player) *player {
	if s.odds > 0 {
		return s.often(ready)
	}
	for {
		highest := slices.MaxFunc(ready, func(a, b *player) int { return s.ranks[a] - s.ranks[b] })
		i := slices.IndexFunc(s.moments, func(m moment) bool {
			return m.call == highest && s.come(m) && (m.event == nil || slices.Contains(ready, m.event))
		})
		if i < 0 {
			if step := highest.next(); step != nil && s.isDecisive(step) {
				s.passed[highest]++
			}
			return highest
		}
		m := s.moments[i]
		s.moments = slices.Delete(s.moments, i, i+1)
		if m.event != nil {
			return m.event
		}
		s.lowest--
		s.ranks[highest] = s.lowest
	}
}

// isDecisive reports whether other calls decide by what a step is about.
func (s *schedule) isDecisive(step *step) bool {
	return step.crucial() && slices.ContainsFunc(step.objects(), func(object string) bool { return s.Users[object] == several })
}

func (s *schedule) often(ready []*player) *player {
	const seldom = 8 // where no call decides by what the step changes
	odds := s.odds
	if s.turn != nil && s.turn.next() != nil && !s.turn.next().crucial() {
		odds *= seldom
	}
	if !slices.Contains(ready, s.turn) || s.random.IntN(odds) == 0 {
		s.turn = ready[s.random.IntN(len(ready))]
	}
	return s.turn
}
