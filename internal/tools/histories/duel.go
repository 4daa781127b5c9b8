package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// A place is before a step of a call, where it is interrupted: the call goes behind the other one.
type place struct {
	call *player
	step string
}

// duel chooses where two calls are interrupted that are alone: where they were interrupted least often. Each step of either call
// has its turn. Then, and sometimes before, the other call is interrupted besides, and the first one goes on to its end: each pair of
// steps has its turn.
func (s *schedule) duel() {
	const sometimes = 6
	first, second := s.players[0], s.players[1]
	var single, double [][]place
	for _, calls := range [][2]*player{{first, second}, {second, first}} {
		for _, p := range s.places(calls[0], calls[1]) {
			single = append(single, []place{p})
			for _, q := range s.places(calls[1], calls[0]) {
				double = append(double, []place{p, q})
			}
		}
		if first.verb == second.verb { // the other way round, it is the same
			break
		}
	}

	chosen := s.leastTried(single)
	if len(double) > 0 && (s.Tried[nameOf(chosen)] > 0 || s.random.IntN(sometimes) == 0) {
		chosen = s.leastTried(double)
	}
	s.Tried[nameOf(chosen)]++
	if len(s.Steps) == 0 { // the first of its kind
		s.untried = 1
	}
	for _, places := range single {
		if s.Tried[nameOf(places)] == 0 {
			s.untried++
		}
	}
	if len(chosen) > 0 {
		s.ranks[chosen[0].call] = len(s.players)
	}
	for _, p := range chosen {
		s.moments = append(s.moments, moment{call: p.call, before: p.step})
	}
}

// places are those before steps of a call on what the other call uses, too, as far as earlier histories tell. A call that is about to
// change the packet filter has the turn to, so others do no more than wait, unless they go on without.
func (s *schedule) places(call, other *player) (list []place) {
	used := s.Used[other.name]
	for _, step := range slices.Sorted(maps.Keys(s.Steps[call.name])) {
		if strings.Contains(step, "setelem ") && !call.impatient {
			continue
		}
		if slices.ContainsFunc(s.Steps[call.name][step], func(object string) bool { return used[object] }) {
			list = append(list, place{call, step})
		}
	}
	return list
}

func (s *schedule) leastTried(all [][]place) []place {
	s.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b []place) int { return cmp.Compare(s.Tried[nameOf(a)], s.Tried[nameOf(b)]) })
}

func nameOf(places []place) string {
	var names []string
	for _, p := range places {
		names = append(names, p.call.name+" before "+p.step)
	}
	return strings.Join(names, ", ")
}

// tellDuel adds what the two calls have done and read.
func (s *schedule) tellDuel(k *known) {
	for _, each := range s.players {
		steps, used := k.Steps[each.name], k.Used[each.name]
		if steps == nil {
			steps, used = map[string][]string{}, map[string]bool{}
			k.Steps[each.name], k.Used[each.name] = steps, used
		}
		maps.Copy(steps, each.crucial)
		maps.Copy(used, each.used)
		each.read.Range(func(path, _ any) bool {
			used[path.(string)] = true
			return true
		})
	}
}
