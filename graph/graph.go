// Package graph draws a host and its containers: which interface leads to which bridge or master, with addresses,
// published ports, VLANs and policies. It writes SVG, and the languages of Graphviz and Mermaid. What is drawn is told;
// the package looks at nothing. Names may come from anybody: each writer escapes what its format would take for more
// than text.
package graph

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// A Graph is a host with what its containers are connected to, in the order in which it is drawn.
type Graph struct {
	Host     string    `json:"host"`
	Uplinks  []string  `json:"uplinks"` // the links of default routes, in words
	Segments []Segment `json:"segments"`
	Unseen   []string  `json:"unseen,omitempty"` // what could not be looked at, and why
}

// A Segment is what interfaces of containers lead to: a bridge, the link that they stand on, or the host itself, which
// routes between them.
type Segment struct {
	Name  string   `json:"name"` // of the link; of the network where the host routes
	Kind  string   `json:"kind"` // bridge, master, routed, …
	Up    State    `json:"state"`
	Facts []string `json:"facts,omitempty"` // addresses, ports that are no container's, VLANs' gateways
	Ends  []End    `json:"interfaces"`
	More  int      `json:"more,omitempty"` // interfaces that are folded away
}

// An End is an interface of a container, and the one on the host's side where there is one.
type End struct {
	Container string   `json:"container"` // as people call it
	ID        string   `json:"id"`        // cut short
	Whole     string   `json:"containerID"`
	Alive     string   `json:"state"` // alive, gone, unknown
	Network   string   `json:"network"`
	Name      string   `json:"name"`           // in the container
	Host      string   `json:"host,omitempty"` // the host-side interface
	Kind      string   `json:"kind,omitempty"` // veth, macvlan, …
	Wire      State    `json:"wire"`
	Addresses []string `json:"addresses,omitempty"`
	Ports     []string `json:"ports,omitempty"`
	Marks     []string `json:"marks,omitempty"` // VLANs, policies, limits
}

// A State is that of a link, or of the way from a container to what it leads to.
type State string

// The States. The zero State is not known.
const (
	Up     State = "up"
	Down   State = "down"
	Broken State = "broken" // a link is missing, or is not joined with the next one
	// the links are as they should be, and rules of the packet filter are missing
	RulesMissing State = "rules missing"
)

// Faulty reports whether something is not as it should be.
func (s State) Faulty() bool { return s == Down || s == Broken || s == RulesMissing }

// Fold leaves at most n interfaces of each segment, and counts the others. None is no limit.
func (g *Graph) Fold(n int) {
	for i := range g.Segments {
		if s := &g.Segments[i]; n > 0 && len(s.Ends) > n {
			s.More += len(s.Ends) - n
			s.Ends = s.Ends[:n]
		}
	}
}

// others are the other interfaces of the container of an end, by which a reader finds these.
func (g *Graph) others(e End) (all []string) {
	for _, s := range g.Segments {
		for _, o := range s.Ends {
			if o.Whole == e.Whole && (o.Network != e.Network || o.Name != e.Name) {
				all = append(all, "also "+o.Name+" on "+s.Name)
			}
		}
	}
	return all
}

// containers are the containers in order, each as its first end with the ports and marks of all.
func (g *Graph) containers() (all []End) {
	at := map[string]int{}
	for _, s := range g.Segments {
		for _, e := range s.Ends {
			i, seen := at[e.Whole]
			if !seen {
				at[e.Whole] = len(all)
				all = append(all, e)
				continue
			}
			all[i].Ports = slices.Concat(all[i].Ports, missing(all[i].Ports, e.Ports))
			all[i].Marks = slices.Concat(all[i].Marks, missing(all[i].Marks, e.Marks))
		}
	}
	return all
}

// missing are those of more that a list lacks.
func missing(list, more []string) []string {
	return slices.DeleteFunc(slices.Clone(more), func(s string) bool { return slices.Contains(list, s) })
}

// title is a container in lines of text.
func (e End) title() []string {
	lines := []string{e.Container}
	if e.ID != "" && e.ID != e.Container {
		lines = append(lines, e.ID)
	}
	if e.Alive != "alive" && e.Alive != "" {
		lines = append(lines, e.Alive)
	}
	for _, p := range e.Ports {
		lines = append(lines, "port "+p)
	}
	return append(lines, e.Marks...)
}

// wire is the way from a segment to a container in lines of text.
func (e End) wire() []string {
	way := e.Name
	if e.Host != "" {
		way = e.Host + " - " + way
	} else if e.Kind != "" {
		way = e.Kind + " " + way
	}
	lines := slices.Concat([]string{way}, e.Addresses)
	if e.Wire.Faulty() {
		lines = append(lines, string(e.Wire))
	}
	return lines
}

// title is a segment in lines of text.
func (s Segment) title() []string {
	head := strings.TrimSpace(s.Kind + " " + s.Name)
	if s.Up != Up && s.Up != "" {
		head += " (" + string(s.Up) + ")"
	}
	return slices.Concat([]string{head}, s.Facts)
}

// more says how many interfaces are folded away.
func (s Segment) more() string { return fmt.Sprintf("and %d more", s.More) }

// visible is text with a mark for each byte and character that has no picture.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
