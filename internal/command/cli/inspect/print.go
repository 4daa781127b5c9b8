package inspect

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/calllog"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
)

// print prints a tree for each attachment; c is one of them.
func (doc *inspection) print(a *app.App, c attach.Cached) {
	s := a.Style(a.Stdout)
	state := s.Good(doc.State)
	if doc.State != attached.Alive {
		state = s.Doubt(doc.State)
	}
	title := "container " + attached.ShortID(doc.ContainerID)
	if doc.Name != "" {
		title = doc.Name + ", " + title
	}
	root := &term.Tree{Text: term.Sprintf("%s, network namespace %s, %s", s.Bold(title), cmp.Or(doc.Netns, "unknown"),
		state)}
	for _, i := range doc.Attachments {
		i.print(root, s)
	}
	for _, line := range doc.Listeners {
		root.Add("%s", line)
	}
	if d := doc.DNS; d != nil {
		line := "name servers " + strings.Join(d.Nameservers, ", ")
		for _, name := range append([]string{d.Domain}, d.Search...) {
			if name != "" {
				line += ", search " + name
			}
		}
		root.Add("%s", line)
	}
	if len(doc.Calls) > 0 {
		last := root.Add("last calls")
		for _, l := range doc.Calls {
			last.Kids = append(last.Kids, calllog.CallTree(l, s))
		}
	}
	a.Draw(root)
	for _, f := range doc.Findings {
		f.Print(a, s)
	}
	for _, line := range doc.Unseen {
		a.Note("could not be seen: %s", line)
	}
}

// print adds an attachment to a tree.
func (i *Inspected) print(to *term.Tree, s term.Style) {
	node := to.Add("%s", s.Bold(i.Network))
	node.Kids = append(node.Kids, &term.Tree{Text: i.drawn(s)})
	for _, part := range []struct {
		word  string
		lines []string
	}{{"address", i.Addresses}, {"route", i.Routes}, {"rate", i.Rates}} {
		for _, line := range part.lines {
			node.Add("%s %s", part.word, line)
		}
	}
	for _, l := range i.Leases {
		node.Add("lease %v", l)
	}
	if len(i.Leases) == 0 {
		node.Add("attached since %s", ago(i.Since))
	}
	for _, p := range i.Ports {
		who := s.Bad("no process listens")
		if len(p.Listeners) > 0 {
			who = term.Printable(strings.Join(p.Listeners, ", "))
		}
		node.Add("port %s: %s", p.Port, who)
	}
	if len(i.Rules) > 0 {
		rules := node.Add("rules")
		for _, r := range i.Rules {
			text := term.Printable(r.Rule)
			if r.Reference {
				text += " (of the reference plugins)"
			}
			rule := rules.Add("%s", text)
			for _, line := range r.Differs {
				rule.Add("%s", s.Bad("differs: "+line))
			}
		}
	}
	if len(i.Filters) > 0 {
		filters := node.Add("packet filters of others")
		for _, f := range i.Filters {
			verdict := s.Good(f.Verdict)
			if f.Verdict != "accepted" {
				verdict = s.Bad(cmp.Or(f.Why, f.Verdict))
			}
			filters.Add("%s: %s", f.Packets, verdict)
		}
	}
	for _, line := range i.Differs {
		node.Add("%s", s.Bad("differs: "+line))
	}
}

// drawn returns the links from the container outwards on one line.
func (i *Inspected) drawn(s term.Style) (line term.Shown) {
	for n, e := range i.Links {
		switch {
		case n > 0 && (e.Cut || e.Missing || i.Links[n-1].Missing):
			line += s.Bad(" ─╳─ ")
		case n > 0:
			line += s.Dim(" ─── ")
		}
		state := s.Good("up")
		switch {
		case e.Missing:
			state = s.Bad("missing")
		case !e.Up:
			state = s.Bad("down")
		}
		what := e.Where
		if e.Kind != "" && e.Kind != "veth" {
			what += " " + e.Kind
		}
		detail := ""
		if n == 0 && !e.Missing {
			detail = fmt.Sprintf(", %s, mtu %d", e.MAC, e.MTU)
		}
		line += term.Sprintf("%s (%s, %s%s)", s.Bold(e.Name), what, state, detail)
	}
	return line
}
