package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A burst is containers that are attached, and then detached, as fast as it goes, some at a time: what a
// node does that comes up, or is drained.
type burst struct {
	Count    int // containers
	Parallel int // how many at a time
}

// A rush is what became of a burst on one side.
type rush struct {
	Add, Del time.Duration // of all together
	Slowest  time.Duration // ADD of one container, the whole chain
	Failed   int           // containers whose ADD or DEL failed
	Error    string        // of the first of these
}

// burst attaches and detaches, each container with a namespace of its own, which is made before.
func (h host) burst(b burst) (r rush, err error) {
	all := make([]attachment, b.Count)
	for i := range all {
		id := fmt.Sprintf("burst-%d-%d", b.Parallel, i)
		all[i] = attachment{5000 + i, id, "/run/netns/" + id, "eth0"}
		if err := nstest.MakeNS(all[i].netns); err != nil {
			return r, err
		}
	}
	results := make([]json.RawMessage, b.Count)
	failed := make([]error, b.Count)
	took := make([]time.Duration, b.Count)
	r.Add = inParallel(b, func(i int) {
		start := time.Now()
		results[i], failed[i] = h.add(all[i], &answer{Took: map[string]cost{}})
		took[i] = time.Since(start)
	})
	r.Del = inParallel(b, func(i int) {
		for j := len(h.c.Plugins) - 1; j >= 0; j-- {
			if _, _, err := h.run("DEL", j, all[i], results[i]); err != nil && failed[i] == nil {
				failed[i] = err
			}
		}
	})
	for i, err := range failed {
		r.Slowest = max(r.Slowest, took[i])
		if err == nil {
			continue
		}
		if r.Failed++; r.Error == "" {
			r.Error = first(err.Error())
		}
	}
	for _, a := range all { // so that the next burst does not run beside their end
		if err := nstest.RemoveNS(a.netns); err != nil {
			return r, err
		}
	}
	return r, nil
}

// inParallel runs do for every container of b, and says how long all took together.
func inParallel(b burst, do func(i int)) time.Duration {
	next := make(chan int, b.Count)
	for i := range b.Count {
		next <- i
	}
	close(next)
	start := time.Now()
	var wg sync.WaitGroup
	for range b.Parallel {
		wg.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// A burstLine is one burst on all sides.
type burstLine struct {
	Case  string
	Burst burst
	By    map[string]rush
}

// measureBursts runs the bursts of one case, one side after the other: each would want all processors.
func measureBursts(o options, c benchCase) (lines []burstLine, err error) {
	number := c.number()
	for _, p := range o.parallel {
		l := burstLine{Case: c.Name, Burst: burst{o.burst, p}, By: map[string]rush{}}
		for _, name := range o.sides(c) {
			a, err := o.onOwnHost(name, order{Case: number, Populate: &load{}, From: -1},
				order{Case: number, Burst: &l.Burst})
			if err != nil {
				return nil, err
			}
			l.By[name] = *a.Rush
			fmt.Fprintf(os.Stderr, "%s: %d, %d at a time, %s: ADD %v, DEL %v, %d failed\n", c.Name, o.burst, p, name,
				a.Rush.Add.Round(time.Millisecond), a.Rush.Del.Round(time.Millisecond), a.Rush.Failed)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// rate is how many containers a second the burst is.
func (l burstLine) rate(d time.Duration) float64 {
	if d == 0 {
		return 0
	}
	return float64(l.Burst.Count) / d.Seconds()
}

func (r report) burstRows() (head []string, rows [][]string) {
	var all []string
	for _, l := range r.Bursts {
		all = append(all, keys(l.By)...)
	}
	names := inOrder(all)
	head = []string{"chain", "containers", "at a time", "verb"}
	for _, name := range names {
		head = append(head, name+", a second")
	}
	head = append(head, "times faster", "failed")
	for _, l := range r.Bursts {
		for _, verb := range []string{"ADD", "DEL"} {
			row := []string{l.Case, fmt.Sprint(l.Burst.Count), fmt.Sprint(l.Burst.Parallel), verb}
			took := func(name string) time.Duration {
				if verb == "ADD" {
					return l.By[name].Add
				}
				return l.By[name].Del
			}
			failed := 0
			for _, name := range names {
				row = append(row, times(l.rate(took(name))))
				failed += l.By[name].Failed
			}
			rows = append(rows, append(row, times(ratio(took(reference), took(ours))), fmt.Sprint(failed)))
		}
	}
	return head, rows
}
