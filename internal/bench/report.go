package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// A summary is what is kept of many costs: of the first the memory, of the others the time.
type summary struct {
	Median, Min, Max time.Duration
	Memory           int64 // KiB, of the greatest process
	N                int
}

func summarise(all []cost) (s summary) {
	if len(all) < 2 {
		return s
	}
	s.Memory = all[0].Memory
	var ds []time.Duration
	for _, c := range all[1:] {
		ds = append(ds, c.Time)
	}
	slices.Sort(ds)
	s.Median, s.Min, s.Max, s.N = ds[len(ds)/2], ds[0], ds[len(ds)-1], len(ds)
	return s
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
	Case    string
	Present load
	Verb    string
	By      map[string]summary // by side
	Fails   []string
	Parts   []line // by plugin, of a chain of several
}

// times is how many times longer one side takes than another.
func (l line) times(longer, shorter string) float64 {
	return ratio(l.By[longer].Median, l.By[shorter].Median)
}

// A start is the cost of a process that does nothing else.
type start struct {
	Name  string
	Took  summary
	Ratio float64 // to the first
	path  string
}

type report struct {
	Machine  machine
	Start    []start
	Lines    []line
	Bursts   []burstLine
	GC       []gcLine
	Paths    []pathLine
	Commands []commandLine `json:",omitempty"`
}

// allowed is how much longer than a Go program that prints a line a plugin may take to answer VERSION.
const allowed = 1.4

// keys are the sides of a line, and order sorts them as tables have them.
func keys[T any](by map[string]T) (names []string) { return slices.Collect(maps.Keys(by)) }

func inOrder(names []string) (sorted []string) {
	for _, name := range []string{ours, chained, command, reference, floored, pathIptables, pathNftables} {
		if slices.Contains(names, name) {
			sorted = append(sorted, name)
		}
	}
	return sorted
}

// rows are a line for each verb; those of the chain's plugins are the parts of the one above.
func (r report) rows() (head []string, rows [][]string) {
	var all []string
	for _, l := range r.Lines {
		all = append(all, keys(l.By)...)
	}
	names := inOrder(all)
	head = []string{"chain", "present", "verb"}
	for _, name := range names {
		head = append(head, name+", ms")
	}
	head = append(head, "times faster")
	if slices.Contains(names, floored) {
		head = append(head, "times the floor")
	}
	row := func(l line, cells ...string) {
		for _, name := range names {
			if s, ok := l.By[name]; ok {
				cells = append(cells, s.String())
			} else {
				cells = append(cells, "")
			}
		}
		faster := times(l.times(reference, ours))
		if t := l.times(reference, chained); t > 0 {
			faster += ", chain " + times(t)
		}
		if len(l.Fails) > 0 {
			faster = "- (see below)"
		}
		cells = append(cells, faster)
		if slices.Contains(names, floored) {
			cells = append(cells, l.overFloor(names))
		}
		rows = append(rows, cells)
	}
	for _, l := range r.Lines {
		row(l, l.Case, l.Present.String(), l.Verb)
		for _, p := range l.Parts {
			if len(l.Fails) == 0 {
				row(p, "", "", "- "+p.Case)
			}
		}
	}
	return head, rows
}

// overFloor is how many times what the floor takes each side does.
func (l line) overFloor(names []string) string {
	var all []string
	for _, name := range names {
		if t := l.times(name, floored); t > 0 && name != floored {
			all = append(all, name+" "+times(t))
		}
	}
	return strings.Join(all, ", ")
}

// memoryRows are what the greatest process of an ADD had in memory.
func (r report) memoryRows() (head []string, rows [][]string) {
	names := []string{ours, chained, reference, floored}
	head = append([]string{"chain", "present"}, names...)
	for _, l := range r.Lines {
		if l.Verb != "ADD" {
			continue
		}
		row := []string{l.Case, l.Present.String()}
		for _, name := range names {
			cell := ""
			if s, ok := l.By[name]; ok {
				cell = mebibytes(s.Memory)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return head, rows
}

// times is a ratio as a page has it; nothing where the other side has no figure.
func times(ratio float64) string {
	switch {
	case ratio == 0:
		return ""
	case ratio >= 100:
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
		for _, name := range inOrder(keys(l.By)) {
			add(l.By[name].Error)
		}
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
	head = []string{"chain", "verb", "from", "to", "ours takes", "the reference takes", "the floor takes"}
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
				longer(few, many, ours), longer(few, many, reference), longer(few, many, floored)})
		}
	}
	return head, rows
}

func longer(few, many line, side string) string {
	t := ratio(many.By[side].Median, few.By[side].Median)
	if t == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f times as long", t)
}

func (l line) sameCase(m line) bool { return l.Case == m.Case && l.Verb == m.Verb }

// An expectation is how many times faster a verb was meant to be when this was designed.
type expectation struct {
	chain, verb string
	least       int // of what is present
	atLeast     float64
	side        string // the faster one; default: ours
}

func expected() []expectation {
	return []expectation{
		{"bridge + host-local", "ADD", 0, 3, ""},
		{"macvlan + host-local", "ADD", 0, 3, ""},
		{"host-device + host-local", "ADD", 0, 3, ""},
		{"ipvlan + host-local", "ADD", 0, 3, ""},
		{"vlan + host-local", "ADD", 0, 3, ""},
		{"ipvlan + host-local", "DEL", 0, 1, ""},
		{"vlan + host-local", "DEL", 0, 1, ""},
		{"bridge + host-local + ipMasq + portmap", "ADD", 0, 10, ""},
		{wholeChain, "ADD", 0, 10, ""},
		{wholeChain, "DEL", 0, 5, ""},
		{wholeChain, "ADD", 0, 20, chained},
		{"host-local", "ADD", 60000, 300, ""},
	}
}

func (e expectation) words() string {
	if e.atLeast == 1 {
		return "not slower"
	}
	words := fmt.Sprintf("at least %.0f times faster", e.atLeast)
	if e.side != "" {
		words += ", " + e.side
	}
	return words
}

func (r report) expectations() (head []string, rows [][]string) {
	head = []string{"verb", "chain", "present", "expected", "found"}
	for _, e := range expected() {
		for _, l := range r.Lines {
			if l.Case == e.chain && l.Verb == e.verb && l.Present.Count >= e.least {
				t := l.times(reference, cmp.Or(e.side, ours))
				found := fmt.Sprintf("%.1f", t)
				if t < e.atLeast {
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
	table(r.gcRows())
	table(r.pathRows())
	table(r.commandRows())
	table(r.memoryRows())
	table(r.expectations())
	for _, f := range r.fails() {
		fmt.Fprintln(&b, f)
	}
	return b.Bytes()
}
