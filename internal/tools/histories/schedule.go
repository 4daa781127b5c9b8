package main

import (
	"math/rand/v2"
	"slices"
)

// A schedule decides whose turn is next. There are two kinds, because two kinds of faults are to be found. One changes
// turns often, after some steps. The other one changes them at a few moments only: a call is interrupted before a step, and
// all others go on to their ends meanwhile, as in the probabilistic concurrency testing of Burckhardt et al. (2010).
type schedule struct {
	random *rand.Rand

	odds int // one of so many steps gives the turn to another player; 0: by rank
	turn *player

	ranks   map[*player]int // who of those that are ready has the highest goes on
	moments []moment
	lowest  int
}

// A moment is before a step of a call. Then the call goes behind all others, or an event happens.
type moment struct {
	call   *player
	steps  int
	change bool    // not before the next step that others decide by
	event  *player // nil: the call goes behind
}

func (m moment) come() bool {
	step := m.call.next()
	return m.steps <= m.call.steps && (!m.change || step == nil || step.crucial())
}

// lengths are about how many steps calls have.
var lengths = map[string]int{"add": 75, "del": 50, "gc": 60, "repair": 30, "check": 5}

func newSchedule(players []*player, random *rand.Rand) *schedule {
	s := &schedule{random: random, ranks: map[*player]int{}}
	if random.IntN(3) == 0 {
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
	for range 1 + random.IntN(2*len(calls)) {
		s.moments = append(s.moments, s.moment(calls[random.IntN(len(calls))], nil))
	}
	for _, each := range players {
		if each.args != nil {
			continue
		}
		s.lowest--
		s.ranks[each] = s.lowest // where its moment never comes
		call := calls[random.IntN(len(calls))]
		i := slices.IndexFunc(calls, func(c *player) bool { return c.name == each.object })
		if i >= 0 {
			call = calls[i]
		}
		m := s.moment(call, each)
		switch {
		case i < 0 && random.IntN(3) == 0:
			m.steps = 0 // before the call begins
		case each.verb == "room" && random.IntN(3) > 0:
			continue // as a rule, a disk stays full
		}
		s.moments = append(s.moments, m)
	}
	return s
}

func (s *schedule) moment(call, event *player) moment {
	return moment{call, 1 + s.random.IntN(lengths[call.verb]), s.random.IntN(4) > 0, event}
}

// next is the one of those who are ready whose turn it is.
func (s *schedule) next(ready []*player) *player {
	if s.odds > 0 {
		return s.often(ready)
	}
	for {
		highest := slices.MaxFunc(ready, func(a, b *player) int { return s.ranks[a] - s.ranks[b] })
		i := slices.IndexFunc(s.moments, func(m moment) bool {
			return m.call == highest && m.come() && (m.event == nil || slices.Contains(ready, m.event))
		})
		if i < 0 {
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
