package main

import (
	"math/rand/v2"
	"slices"
)

// A schedule decides whose turn is next. There are three kinds, because three kinds of faults are to be found. One changes
// turns often, after some steps. Another one changes them at a few moments only: a call is interrupted before a step, and
// all others go on to their ends meanwhile, as in the probabilistic concurrency testing of Burckhardt et al. (2010). The third
// one does that only before a step on an object that calls of earlier histories shared.
type schedule struct {
	random *rand.Rand

	odds int // one of so many steps gives the turn to another player; 0: by rank
	turn *player

	ranks   map[*player]int // who of those that are ready has the highest goes on
	moments []moment
	shared  map[string]bool // objects that calls of earlier histories shared; nil: calls are interrupted before any step
	passed  map[*player]int // steps on these that calls have made
	lowest  int
}

// A moment is before a step of a call. Then the call goes behind all others, or an event happens.
type moment struct {
	call   *player
	steps  int     // that the call has made before
	shared bool    // count those on shared objects alone
	change bool    // not before the next step that others decide by
	event  *player // nil: the call goes behind
}

func (s *schedule) come(m moment) bool {
	step := m.call.next()
	if m.shared {
		return step != nil && s.isShared(step) && m.steps <= s.passed[m.call]
	}
	return m.steps <= m.call.steps && (!m.change || step == nil || step.crucial())
}

// lengths are about how many steps calls have.
var lengths = map[string]int{"add": 75, "del": 50, "gc": 60, "repair": 30, "check": 5, daemonVerb: 15}

func newSchedule(players []*player, random *rand.Rand, shared map[string]bool) *schedule {
	s := &schedule{random: random, ranks: map[*player]int{}, passed: map[*player]int{}}
	kind := random.IntN(6)
	if kind == 0 {
		s.odds = []int{2, 4, 8, 16}[random.IntN(4)]
		return s
	}
	for i, n := range random.Perm(len(players)) {
		s.ranks[players[i]] = n
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
	if kind < 4 && len(shared) > 0 {
		s.shared = shared
	}
	s.interrupt(calls)
	for _, each := range players {
		if each.args == nil {
			s.happen(each, calls)
		}
	}
	return s
}

// interrupt chooses moments of calls.
func (s *schedule) interrupt(calls []*player) {
	times := 1 + s.random.IntN(2*len(calls))
	if s.shared != nil {
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
	m := moment{call: call, event: event, shared: s.shared != nil && event == nil}
	if m.shared {
		m.steps = s.random.IntN(lengths[call.verb] / 3)
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
			if step := highest.next(); step != nil && s.isShared(step) {
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

// isShared reports whether other calls use what a step is about.
func (s *schedule) isShared(step *step) bool {
	return slices.ContainsFunc(step.objects(), func(object string) bool { return s.shared[object] })
}

func (s *schedule) often(ready []*player) *player {
	const seldom = 8 // where nobody decides by what the step changes
	odds := s.odds
	if s.turn != nil && s.turn.next() != nil && !s.turn.next().crucial() {
		odds *= seldom
	}
	if !slices.Contains(ready, s.turn) || s.random.IntN(odds) == 0 {
		s.turn = ready[s.random.IntN(len(ready))]
	}
	return s.turn
}
