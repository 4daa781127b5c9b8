package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// A summary is what is kept of many durations.
type summary struct {
	Median, Min, Max time.Duration
	N                int
}

func summarise(ds []time.Duration) summary {
	if len(ds) == 0 {
		return summary{}
	}
	ds = slices.Sorted(slices.Values(ds))
	return summary{ds[len(ds)/2], ds[0], ds[len(ds)-1], len(ds)}
}

func ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// String is in milliseconds.
func (s summary) String() string {
	return fmt.Sprintf("%s [%s..%s]", ms(s.Median), ms(s.Min), ms(s.Max))
}

func ms(d time.Duration) string {
	digits := 2
	if d >= 100*time.Millisecond {
		digits = 0
	} else if d >= 10*time.Millisecond {
		digits = 1
	}
	return strconv.FormatFloat(float64(d)/1e6, 'f', digits, 64)
}

// A line is one verb of one case at one load.
type line struct {
	Case            string
	Present         load
	Verb            string
	Ours, Reference summary
	Ratio           float64 // the reference's median to ours: how many times faster we are
	Fails           []string
	Parts           []line // by plugin, of a chain of several
}

// A start is the cost of a process that does nothing else.
type start struct {
	Name  string
	Took  summary
	Ratio float64 // to the first
	path  string
}

type report struct {
	Machine machine
	Start   []start
	Lines   []line
	Bursts  []burstLine
}

// allowed is how much longer than a Go program that prints a line a plugin may take to answer VERSION.
const allowed = 1.4

func (r report) rows() (head []string, rows [][]string) {
	head = []string{"chain", "present", "verb", "ours, ms", "reference, ms", "times faster"}
	for _, l := range r.Lines {
		faster := times(l.Ratio)
		if len(l.Fails) > 0 {
			faster = "- (see below)"
		}
		rows = append(rows, []string{l.Case, l.Present.String(), l.Verb, l.Ours.String(), l.Reference.String(), faster})
		for _, p := range l.Parts {
			if len(l.Fails) == 0 {
				rows = append(rows, []string{"", "", "- " + p.Case, p.Ours.String(), p.Reference.String(), times(p.Ratio)})
			}
		}
	}
	return head, rows
}

func times(ratio float64) string {
	if ratio >= 100 {
		return fmt.Sprintf("%.0f", ratio)
	}
	return fmt.Sprintf("%.1f", ratio)
}

// fails are the failures, each once.
func (r report) fails() (all []string) {
	add := func(f string) {
		if f != "" && !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	for _, l := range r.Lines {
		for _, f := range l.Fails {
			add(f)
		}
	}
	for _, l := range r.Bursts {
		add(l.Ours.Error)
		add(l.Reference.Error)
	}
	return all
}

func (r report) startRows() (head []string, rows [][]string) {
	head = []string{"process", "ms", "to the first"}
	for _, s := range r.Start {
		rows = append(rows, []string{s.Name, s.Took.String(), fmt.Sprintf("%.2f", s.Ratio)})
	}
	return head, rows
}

// growth compares, verb by verb, each case at its greatest load with the same at its least.
func (r report) growth() (head []string, rows [][]string) {
	head = []string{"chain", "verb", "from", "to", "ours takes", "the reference takes"}
	for i, few := range r.Lines {
		if i > 0 && slices.ContainsFunc(r.Lines[:i], few.sameCase) {
			continue
		}
		many := few
		for _, l := range r.Lines[i:] {
			if few.sameCase(l) && l.Present.Count > many.Present.Count {
				many = l
			}
		}
		if many.Present != few.Present {
			rows = append(rows, []string{few.Case, few.Verb, few.Present.String(), many.Present.String(),
				fmt.Sprintf("%.1f times as long", ratio(many.Ours.Median, few.Ours.Median)),
				fmt.Sprintf("%.1f times as long", ratio(many.Reference.Median, few.Reference.Median))})
		}
	}
	return head, rows
}

func (l line) sameCase(m line) bool { return l.Case == m.Case && l.Verb == m.Verb }

// An expectation is how many times faster a verb was meant to be when this was designed.
type expectation struct {
	chain, verb string
	least       int // of what is present
	atLeast     float64
}

func expected() []expectation {
	return []expectation{
		{"bridge + host-local", "ADD", 0, 3},
		{"macvlan + host-local", "ADD", 0, 3},
		{"host-device + host-local", "ADD", 0, 3},
		{"ipvlan + host-local", "ADD", 0, 3},
		{"vlan + host-local", "ADD", 0, 3},
		{"ipvlan + host-local", "DEL", 0, 1},
		{"vlan + host-local", "DEL", 0, 1},
		{"bridge + host-local + ipMasq + portmap", "ADD", 0, 10},
		{wholeChain, "ADD", 0, 10},
		{wholeChain, "DEL", 0, 5},
		{"host-local", "ADD", 60000, 300},
	}
}

func (e expectation) words() string {
	if e.atLeast == 1 {
		return "not slower"
	}
	return fmt.Sprintf("at least %.0f times faster", e.atLeast)
}

func (r report) expectations() (head []string, rows [][]string) {
	head = []string{"verb", "chain", "present", "expected", "found"}
	for _, e := range expected() {
		for _, l := range r.Lines {
			if l.Case == e.chain && l.Verb == e.verb && l.Present.Count >= e.least {
				found := fmt.Sprintf("%.1f", l.Ratio)
				if l.Ratio < e.atLeast {
					found += ", missed"
				}
				rows = append(rows, []string{l.Verb, l.Case, l.Present.String(), e.words(), found})
			}
		}
	}
	return head, rows
}

func (r report) verdict() string {
	if len(r.Start) < 2 {
		return ""
	}
	word := "kept"
	if r.Start[1].Ratio > allowed {
		word = "BROKEN"
	}
	return fmt.Sprintf("The bound of %.1f for our VERSION is %s: %.2f.", allowed, word, r.Start[1].Ratio)
}

func (r report) text() []byte {
	var b bytes.Buffer
	table := func(head []string, rows [][]string) {
		if len(rows) == 0 {
			return
		}
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, row := range append([][]string{head}, rows...) {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		w.Flush()
		b.WriteByte('\n')
	}
	for _, f := range r.Machine.facts() {
		fmt.Fprintf(&b, "%s: %s\n", f[0], f[1])
	}
	b.WriteByte('\n')
	table(r.startRows())
	fmt.Fprintf(&b, "%s\n\n", r.verdict())
	table(r.rows())
	table(r.growth())
	table(r.burstRows())
	table(r.expectations())
	for _, f := range r.fails() {
		fmt.Fprintln(&b, f)
	}
	return b.Bytes()
}
