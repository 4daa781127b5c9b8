package cli

import (
	"fmt"
	"slices"
	"strings"
)

// print prints the diagnosis, a line for what is in order.
func (d *doctor) print() {
	s := d.style(d.stdout)
	for _, section := range []string{onHost, onNetwork, onContainer} {
		mine := slices.DeleteFunc(slices.Clone(d.Findings), func(f *diagnosed) bool { return f.Section != section })
		d.app.print("%s: %s\n", s.bold(section), d.sum(s, section, mine))
		for _, f := range mine {
			f.print(d.app, s)
		}
	}
	for _, line := range d.Unseen {
		d.note("could not be seen: %s", line)
	}
	for _, line := range d.Notes {
		d.note("%s", line)
	}
	if len(d.Findings) > 0 {
		d.note("nothing was changed; docs/doctor.md explains each finding")
	}
}

// sum is a section in one line.
func (d *doctor) sum(s style, section string, found []*diagnosed) shown {
	n, counted := d.Looked[section]
	of := ""
	if counted {
		of = fmt.Sprintf(" (%d looked at)", n)
	}
	switch {
	case len(found) > 0:
		count := map[string]int{}
		for _, f := range found {
			count[f.Severity]++
		}
		var words []string
		for _, severity := range []string{fault, warning} {
			if n := count[severity]; n > 0 {
				words = append(words, plural(n, severity))
			}
		}
		return printable(strings.Join(words, ", ") + of)
	case section == onContainer && !counted:
		return s.doubt("could not be seen")
	case len(d.Unseen) > 0:
		return s.doubt("nothing wrong in what could be seen") + printable(of)
	}
	return s.good("in order") + printable(of)
}

// plural is "1 fault" or "2 faults".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// print prints a finding as a tree.
func (f *diagnosed) print(a *app, s style) {
	paint, where := s.bad, " ("+f.Where+")"
	if f.Severity == warning {
		paint = s.doubt
	}
	switch {
	case f.Where == onHost, f.Where == "container":
		where = ""
	case len(f.Containers) == 1 && f.Where == f.Containers[0].Container:
		where = " (" + f.Containers[0].short + ")"
	}
	node := &tree{text: sprintf("%s%s: %s", paint(f.Severity+" "+f.ID), where, f.What)}
	node.add("why: %s", f.Why)
	if n := len(f.Containers); n > 0 {
		const most = 3
		kid := node.add("%s", plural(n, "container"))
		for i, c := range f.Containers {
			if i == most && n > most+1 {
				kid.add("and %d more (-o json has all)", n-most)
				break
			}
			c.print(kid)
		}
	}
	node.add("mend: %s", s.bold(f.Mend))
	node.print(a.stdout, s)
}

// print adds a container to the finding that hits it.
func (c affected) print(to *tree) {
	kid := to.add("%s", c.short)
	const most = 3
	for i, line := range c.Details {
		if i == most && len(c.Details) > most+1 {
			kid.add("and %d more (-o json has all)", len(c.Details)-most)
			break
		}
		kid.add("%s", line)
	}
	if c.Mend != "" {
		kid.add("mend: %s", c.Mend)
	}
}
