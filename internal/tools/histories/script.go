package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A script is one history: what is attached before, who acts, and whose turn it is.
type script struct {
	why      []string // comments
	chain    string
	attached []string // containers
	actors   []actor
	turns    []turn // none: seed decides
	seed     uint64

	fresh     bool // the host has had no attachment yet, before those
	flushed   bool // the packet filter was, since they were attached
	impatient bool // a call that has to wait for the turn to change the packet filter goes on without
}

// host is how the host is before: what has been attached once leaves a bridge and a table behind.
func (s *script) host() string {
	if len(s.attached) == 0 && s.fresh {
		return "fresh"
	}
	if s.flushed {
		return fmt.Sprint(len(s.attached), " attached and flushed")
	}
	return fmt.Sprint(len(s.attached), " attached")
}

// kind is what duels have in common that tell of each other: how the host is before, and the two calls. It is "" for what is no
// duel.
func (s *script) kind() string {
	call := func(a actor) bool {
		return slices.Contains([]string{"add", "del", "gc", "repair"}, a.verb) && a.after == ""
	}
	if len(s.actors) != 2 || !call(s.actors[0]) || !call(s.actors[1]) {
		return ""
	}
	return s.host() + " " + min(s.actors[0].name, s.actors[1].name) + " " + max(s.actors[0].name, s.actors[1].name)
}

// teaches is which histories a history tells something of: those of its kind, and its chain.
func (s *script) teaches() string { return cmp.Or(chains()[s.chain].kin, s.chain) + " " + s.kind() }

// An actor makes one call, or does one thing to the host.
type actor struct {
	name, verb, object string
	after              string // the actor that has to end before
}

// A turn lets an actor go on until it is about to make a system call, or to its end.
type turn struct{ actor, until string }

func (s *script) String() string {
	var b strings.Builder
	for _, line := range s.why {
		fmt.Fprintln(&b, "#", line)
	}
	fmt.Fprintln(&b, "chain", s.chain)
	if s.fresh {
		fmt.Fprintln(&b, "fresh")
	}
	if s.flushed {
		fmt.Fprintln(&b, "flushed")
	}
	if s.impatient {
		fmt.Fprintln(&b, "impatient")
	}
	for _, c := range s.attached {
		fmt.Fprintln(&b, "attached", c)
	}
	for _, a := range s.actors {
		words := []string{"actor", a.name, a.verb}
		if a.object != "" {
			words = append(words, a.object)
		}
		if a.after != "" {
			words = append(words, "after", a.after)
		}
		fmt.Fprintln(&b, strings.Join(words, " "))
	}
	for _, t := range s.turns {
		line := "turn " + t.actor
		if t.until != "" {
			line += " until " + t.until
		}
		fmt.Fprintln(&b, line)
	}
	if len(s.turns) == 0 {
		fmt.Fprintln(&b, "seed", s.seed)
	}
	return b.String()
}

func parse(r io.Reader) (*script, error) {
	s := &script{}
	for in := bufio.NewScanner(r); ; {
		if !in.Scan() {
			return s, in.Err()
		}
		line := in.Text()
		if line == "" {
			continue
		}
		if err := s.parseLine(line); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
}

func (s *script) parseLine(line string) (err error) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "#":
		s.why = append(s.why, rest)
	case "chain":
		s.chain = rest
	case "fresh":
		s.fresh = true
	case "flushed":
		s.flushed = true
	case "impatient":
		s.impatient = true
	case "attached":
		s.attached = append(s.attached, rest)
	case "actor":
		call, after, _ := strings.Cut(rest, " after ")
		words := append(strings.Fields(call), "", "")
		if len(words) < 4 {
			return fmt.Errorf("want: actor NAME VERB [OBJECT] [after ACTOR]")
		}
		s.actors = append(s.actors, actor{name: words[0], verb: words[1], object: words[2], after: after})
	case "turn":
		name, until, _ := strings.Cut(rest, " until ")
		if !slices.ContainsFunc(s.actors, func(a actor) bool { return a.name == name }) {
			return fmt.Errorf("there is no such actor")
		}
		s.turns = append(s.turns, turn{name, until})
	case "seed":
		s.seed, err = strconv.ParseUint(rest, 10, 64)
	default:
		return fmt.Errorf("no word of a script")
	}
	return err
}

// without is the script without one actor, its turns, and what waits for it.
func (s *script) without(name string) *script {
	less := *s
	less.actors = slices.DeleteFunc(slices.Clone(s.actors), func(a actor) bool { return a.name == name })
	less.turns = slices.DeleteFunc(slices.Clone(s.turns), func(t turn) bool { return t.actor == name })
	for _, a := range s.actors {
		if a.after == name || a.verb == "kill" && a.object == name {
			return less.without(a.name)
		}
	}
	return &less
}
