package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
)

// print prints the answer as a tree for each attachment; c is one of them.
func (doc *inspection) print(a *app, c attach.Cached) {
	s := a.style(a.stdout)
	state := s.good(doc.State)
	if doc.State != alive {
		state = s.doubt(doc.State)
	}
	title := "container " + shortID(doc.ContainerID)
	if doc.Name != "" {
		title = doc.Name + ", " + title
	}
	root := &tree{text: sprintf("%s, network namespace %s, %s", s.bold(title), cmp.Or(doc.Netns, "unknown"), state)}
	for _, i := range doc.Attachments {
		i.print(root, s)
	}
	for _, line := range doc.Listeners {
		root.add("%s", line)
	}
	if d := doc.DNS; d != nil {
		line := "name servers " + strings.Join(d.Nameservers, ", ")
		for _, name := range append([]string{d.Domain}, d.Search...) {
			if name != "" {
				line += ", search " + name
			}
		}
		root.add("%s", line)
	}
	if len(doc.Calls) > 0 {
		last := root.add("last calls")
		for _, l := range doc.Calls {
			last.kids = append(last.kids, callTree(l, s))
		}
	}
	root.print(a.stdout, s)
	for _, f := range doc.Findings {
		f.print(a, s)
	}
	for _, line := range doc.Unseen {
		a.note("could not be seen: %s", line)
	}
}

// print adds an attachment to a tree.
func (i *inspected) print(to *tree, s style) {
	node := to.add("%s", s.bold(i.Network))
	node.kids = append(node.kids, &tree{text: i.drawn(s)})
	for _, part := range []struct {
		word  string
		lines []string
	}{{"address", i.Addresses}, {"route", i.Routes}, {"rate", i.Rates}} {
		for _, line := range part.lines {
			node.add("%s %s", part.word, line)
		}
	}
	for _, l := range i.Leases {
		node.add("lease %v", l)
	}
	if len(i.Leases) == 0 {
		node.add("attached since %s", ago(i.Since))
	}
	for _, p := range i.Ports {
		who := s.bad("nobody listens")
		if len(p.Listeners) > 0 {
			who = printable(strings.Join(p.Listeners, ", "))
		}
		node.add("port %s: %s", p.Port, who)
	}
	if len(i.Rules) > 0 {
		rules := node.add("rules")
		for _, r := range i.Rules {
			text := printable(r.Rule)
			if r.Theirs {
				text += " (of the reference plugins)"
			}
			rule := rules.add("%s", text)
			for _, line := range r.Differs {
				rule.add("%s", s.bad("differs: "+line))
			}
		}
	}
	if len(i.Filters) > 0 {
		filters := node.add("packet filters of others")
		for _, f := range i.Filters {
			verdict := s.good(f.Verdict)
			if f.Verdict != "accepted" {
				verdict = s.bad(cmp.Or(f.Why, f.Verdict))
			}
			filters.add("%s: %s", f.Packets, verdict)
		}
	}
	for _, line := range i.Differs {
		node.add("%s", s.bad("differs: "+line))
	}
}

// drawn are the links from the container outwards in one line.
func (i *inspected) drawn(s style) (line shown) {
	for n, e := range i.Links {
		switch {
		case n > 0 && (e.Cut || e.Missing || i.Links[n-1].Missing):
			line += s.bad(" ─╳─ ")
		case n > 0:
			line += s.dim(" ─── ")
		}
		state := s.good("up")
		switch {
		case e.Missing:
			state = s.bad("missing")
		case !e.Up:
			state = s.bad("down")
		}
		what := e.Where
		if e.Kind != "" && e.Kind != "veth" {
			what += " " + e.Kind
		}
		detail := ""
		if n == 0 && !e.Missing {
			detail = fmt.Sprintf(", %s, mtu %d", e.MAC, e.MTU)
		}
		line += sprintf("%s (%s, %s%s)", s.bold(e.Name), what, state, detail)
	}
	return line
}
