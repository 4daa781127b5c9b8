package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
)

// print prints the diagnosis. A section without findings is one line.
func (d *Doctor) print() {
	s := d.Style(d.Stdout)
	for _, section := range []string{OnHost, onNetwork, onContainer} {
		mine := slices.DeleteFunc(slices.Clone(d.Findings), func(f *Diagnosed) bool { return f.Section != section })
		d.App.Print("%s: %s\n", s.Bold(section), d.sum(s, section, mine))
		for _, f := range mine {
			f.Print(d.App, s)
		}
	}
	for _, a := range d.Answers {
		text := fmt.Sprintf("%s answers %s %s: %s after %v", a.To, a.Container, a.Path, a.Answer, a.Took)
		if a.Why != "" {
			text += ": " + a.Why
		}
		d.Note("%s", text)
	}
	for _, line := range d.Unseen {
		d.Note("could not be seen: %s", line)
	}
	d.NoteAll(d.Notes)
	if len(d.Findings) > 0 {
		d.Note("nothing was changed; `fairlead explain %s` says more", d.Findings[0].ID)
	}
}

// sum returns the heading of a section.
func (d *Doctor) sum(s term.Style, section string, found []*Diagnosed) term.Shown {
	n, counted := d.Looked[section]
	of := ""
	if counted {
		of = fmt.Sprintf(" (%d examined)", n)
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
		return term.Printable(strings.Join(words, ", ") + of)
	case section == onContainer && !counted:
		return s.Doubt("could not be seen")
	case len(d.Unseen) > 0:
		return s.Doubt("nothing wrong found") + term.Printable(of)
	}
	return s.Good("in order") + term.Printable(of)
}

// plural returns "1 fault" or "2 faults".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Print prints a finding as a tree.
func (f *Diagnosed) Print(a *app.App, s term.Style) {
	paint, where := s.Bad, " ("+f.Where+")"
	if f.Severity == warning {
		paint = s.Doubt
	}
	switch {
	case f.Where == OnHost, f.Where == "container":
		where = ""
	case len(f.Containers) == 1 && f.Where == f.Containers[0].Container:
		where = " (" + f.Containers[0].short + ")"
	}
	node := &term.Tree{Text: term.Sprintf("%s%s: %s", paint(f.Severity+" "+string(f.ID)), where, f.What)}
	node.Add("why: %s", f.Why)
	if n := len(f.Containers); n > 0 {
		kid := node.Add("%s", plural(n, "container"))
		few(kid, f.Containers, func(c affected) { c.print(kid) })
	}
	if f.Fix != "" {
		node.Add("fix: %s", s.Bold(f.Fix))
	}
	if f.Look != "" {
		node.Add("look: %s", f.Look)
	}
	a.Draw(node)
}

// print adds an affected container to the tree of its finding.
func (c affected) print(to *term.Tree) {
	kid := to.Add("%s", c.short)
	few(kid, c.Details, func(line string) { kid.Add("%s", line) })
	if c.Fix != "" {
		kid.Add("fix: %s", c.Fix)
	}
	if c.Look != "" {
		kid.Add("look: %s", c.Look)
	}
}

// few prints the first elements of a long list, and adds how many it leaves out.
func few[T any](to *term.Tree, list []T, print func(T)) {
	const most = 3
	left := len(list) - most
	for i, one := range list {
		if i == most && left > 1 {
			to.Add("and %d more (-o json has all)", left)
			return
		}
		print(one)
	}
}
