// Package graph is fairlead graph: it collects the bridges, links and containers of a host. The top-level package
// graph draws them.
package graph

import (
	"cmp"
	"os"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/doctor"
	"github.com/fairlead-cni/fairlead/internal/command/cli/inspect"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/command/graph"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/spf13/cobra"
)

// Command is `fairlead graph`.
func Command(a *app.App) *cobra.Command {
	var f snapshot.Filter
	fold, format := 0, ""
	formats := []string{"text", "svg", "dot", "mermaid", "json"}
	c := &cobra.Command{
		Use: "graph [NET]", GroupID: "look", Args: app.Operands("[NET]"),
		Short: "Draw the host, its bridges and masters, and the containers on them",
		Long: `Draw what containers are connected to: the host with its uplinks, bridges, masters and networks that the
host routes, and each container with both ends of its interface, addresses, published ports, VLANs and policies. The
command asks the kernel for the links and the packet filter. It marks links that are missing, down or not connected, and
containers whose rules are missing. Nothing is changed, and no packet is sent.

NET and the filters are those of ls. svg is a picture for any browser, dot is for Graphviz, and GitHub and GitLab show
mermaid within Markdown. For an ordinary user, the command draws what ADD answered instead of what it cannot see, and
says so.`,
		Example: `  fairlead graph
  fairlead graph -o svg > host.svg
  fairlead graph lan --fold 20 -o svg > lan.svg     draw 20 interfaces of each bridge, count the others
  fairlead graph -o dot | dot -Tpdf > host.pdf`,
		RunE: func(c *cobra.Command, args []string) error {
			if !slices.Contains(formats, format) {
				return app.Usage("-o %s: want text, svg, dot, mermaid or json", format)
			}
			if fold < 0 {
				return app.Usage("--fold %d: want 0, which draws all, or a larger number", fold)
			}
			if format == "json" { // then errors are documents too
				a.Output = format
			}
			g, err := drawing(a, strings.Join(args, ""), f)
			if err != nil {
				return err
			}
			g.Fold(fold)
			return draw(a, g, format)
		},
		ValidArgsFunction: netconf.CompleteNetworks,
	}
	snapshot.FilterFlags(c, &f)
	c.Flags().IntVar(&fold, "fold", 0, "draw only `N` interfaces of each bridge or master, and count the others")
	c.Flags().StringVarP(&format, "output", "o", "text", "`FORMAT` of the answer: "+strings.Join(formats, ", "))
	c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// drawing collects the attachments that ls would list.
func drawing(a *app.App, network string, f snapshot.Filter) (*graph.Graph, error) {
	s, err := snapshot.Select(network, f)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	list := s.All
	p := painter{Doctor: doctor.Of(a, s), at: map[string]int{}, names: map[string]string{}}
	for _, problem := range s.Unread {
		p.Unexamined("%v", problem)
	}
	if p.links, err = rtnl.Links(p.World.Host); err != nil {
		p.Unexamined("the links of the host: %v", err)
	}
	p.Host, _ = os.Hostname()
	p.uplinks()
	for _, c := range list {
		if name := attached.Name(c); name != "" {
			p.names[c.ContainerID] = name
		}
	}
	bare := p.RulesMissing(list)
	for _, c := range list {
		if c.IfName != "lo" && (network != "" || f.All || c.Network != attached.LoopbackNetwork) {
			p.attached(c, bare[c.Owner()])
		}
		if err := p.Ctx.Err(); err != nil {
			return nil, err
		}
	}
	for i := range p.Segments {
		p.facts(&p.Segments[i])
	}
	if p.Graph.Unseen = p.Diagnosis.Unseen; len(p.Graph.Unseen) > 0 {
		a.Status = app.ExitFailure
	}
	return &p.Graph, nil
}

// draw prints a graph.
func draw(a *app.App, g *graph.Graph, format string) error {
	for _, line := range g.Unseen {
		a.Note("could not be seen: %s", line)
	}
	switch format {
	case "svg":
		return g.WriteSVG(a.Stdout)
	case "dot":
		return g.WriteDOT(a.Stdout)
	case "mermaid":
		return g.WriteMermaid(a.Stdout)
	case "json":
		return a.PrintJSON(g)
	}
	s := a.Style(a.Stdout)
	root := &term.Tree{Text: term.Sprintf("host %s", s.Bold(g.Host))}
	for _, u := range g.Uplinks {
		root.Add("uplink %s", u)
	}
	for _, seg := range g.Segments {
		head := root.Add("%s %s%s", seg.Kind, s.Bold(seg.Name), faulty(s, seg.Up))
		for _, fact := range seg.Facts {
			head.Add("%s", fact)
		}
		for _, e := range seg.Ends {
			interfaceTree(head, e, s)
		}
		if seg.More > 0 {
			head.Add("and %d more", seg.More)
		}
	}
	if len(g.Segments) == 0 {
		root.Add("nothing is attached")
	}
	a.Draw(root)
	return nil
}

// faulty returns a mark for a link that is down or broken.
func faulty(s term.Style, state graph.State) term.Shown {
	if state.Faulty() {
		return term.Sprintf(" (%s)", s.Bad(string(state)))
	}
	return ""
}

// interfaceTree adds an interface of a container to the tree of its bridge.
func interfaceTree(to *term.Tree, e graph.End, s term.Style) {
	way := cmp.Or(e.Host, e.Kind)
	if way != "" {
		way += " ─── "
	}
	title := s.Bold(e.Container)
	if e.ID != e.Container {
		title += term.Printable(", " + e.ID)
	}
	if e.Alive != attached.Alive {
		title += ", " + s.Doubt(e.Alive)
	}
	node := to.Add("%s%s of %s, network %s%s", way, e.Name, title, e.Network, faulty(s, e.Wire))
	for _, line := range e.Addresses {
		node.Add("address %s", line)
	}
	for _, line := range e.Ports {
		node.Add("port %s", line)
	}
	if len(e.Marks) > 0 {
		node.Add("%s", strings.Join(e.Marks, ", "))
	}
}

// painter collects what a graph shows.
type painter struct {
	*doctor.Doctor
	graph.Graph
	links []*rtnl.Link      // of the host
	at    map[string]int    // index of a segment, by its kind and name
	ends  []string          // host-side interfaces of containers
	names map[string]string // names of containers, by ID
}

// link returns the host's link of that name, or nil.
func (p *painter) link(name string) *rtnl.Link {
	i := slices.IndexFunc(p.links, func(l *rtnl.Link) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return p.links[i]
}

// uplinks adds the links of the host's default routes.
func (p *painter) uplinks() {
	p.Uplinks = []string{}
	at := map[int]int{} // by the link's index
	for _, family := range []uint8{rtnl.IPv4, rtnl.IPv6} {
		routes, err := rtnl.Routes(p.World.Host, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable})
		if err != nil {
			p.Unexamined("the routes of the host: %v", err)
		}
		for _, r := range routes {
			i := slices.IndexFunc(p.links, func(l *rtnl.Link) bool { return l.Index == r.Link })
			if r.Dst.Bits() != 0 || r.Type != rtnl.Unicast || i < 0 {
				continue
			}
			l := p.links[i]
			if n, known := at[l.Index]; known {
				p.Uplinks[n] += ", " + inspect.RouteText(r)
				continue
			}
			at[l.Index] = len(p.Uplinks)
			words := slices.Concat([]string{l.Name, "(" + string(state(l.Up)) + ")"}, p.addressesOf(l))
			p.Uplinks = append(p.Uplinks, strings.Join(words, " ")+", "+inspect.RouteText(r))
		}
	}
}

func state(up bool) graph.State {
	if up {
		return graph.Up
	}
	return graph.Down
}

// addressesOf returns the addresses of a host's link, without link-local ones.
func (p *painter) addressesOf(l *rtnl.Link) (all []string) {
	addrs, err := rtnl.Addrs(p.World.Host, l.Index)
	if err != nil {
		p.Unexamined("the addresses of %s: %v", l.Name, err)
	}
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			all = append(all, a.Prefix.String())
		}
	}
	return all
}

// attached takes an attachment down; bare is set where its rules of the packet filter are missing.
func (p *painter) attached(c attach.Cached, bare bool) {
	about := p.Describe(c)
	e := graph.End{Container: cmp.Or(p.names[c.ContainerID], attached.ShortID(c.ContainerID)),
		ID:    attached.ShortID(c.ContainerID),
		Whole: c.ContainerID, Alive: about.State, Network: c.Network, Name: c.IfName}
	if attached.Hashed(c) { // which says nothing to a person
		e.ID = e.Container
	}
	i := &inspect.Inspected{}
	var inner *rtnl.Link
	if about.State == attached.Alive && c.Netns != "" {
		p.Inside(c, func(ns *kernel.NS) { inner = inspect.LinkSeen(p.Doctor, ns, c, i) })
	}
	if len(i.Addresses) == 0 || inner == nil {
		i.Addresses = nil
		for _, a := range about.Addresses {
			i.Addresses = append(i.Addresses, a.String())
		}
	}
	e.Addresses = slices.DeleteFunc(i.Addresses, func(a string) bool { return strings.HasPrefix(a, "fe80:") })
	for _, m := range attached.Mappings(c.Capabilities) {
		e.Ports = append(e.Ports, m.String())
	}
	net := netconf.NetworkOf(p.World, &c)
	e.Marks = net.Marks
	s := p.segment(c, net, inner, &e)
	for _, l := range i.Links {
		if l.Missing {
			e.Wire = graph.Broken
		} else if !l.Up && e.Wire != graph.Broken {
			e.Wire = graph.Down
		}
	}
	if bare && !e.Wire.Faulty() {
		e.Wire = graph.RulesMissing
	}
	key := s.Kind + "\x00" + s.Name
	n, known := p.at[key]
	if !known {
		n, p.at[key] = len(p.Segments), len(p.Segments)
		p.Segments = append(p.Segments, s)
	}
	p.Segments[n].Ends = append(p.Segments[n].Ends, e)
}
