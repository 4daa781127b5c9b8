// Package graph draws a host and its containers: which interface leads to which bridge or master, with addresses,
// published ports, VLANs and policies. It writes SVG, DOT for Graphviz, and Mermaid. The caller collects what is
// drawn. Names are untrusted: each writer escapes what its format would interpret.
package graph

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Graph is a host and what its containers are connected to, in drawing order.
type Graph struct {
	Host     string    `json:"host"`
	Uplinks  []string  `json:"uplinks"` // the links of default routes
	Segments []Segment `json:"segments"`
	Unseen   []string  `json:"unseen,omitempty"` // what could not be examined, and why
}

// Segment is what interfaces of containers lead to: a bridge, their master, or a network that the host routes.
type Segment struct {
	Name  string   `json:"name"` // of the link, or of the network if the host routes
	Kind  string   `json:"kind"` // bridge, master, routed, …
	Up    State    `json:"state"`
	Facts []string `json:"facts,omitempty"` // addresses, other ports, gateways of VLANs
	Ends  []End    `json:"interfaces"`
	More  int      `json:"more,omitempty"` // number of interfaces not drawn
}

// End is an interface of a container, and its host-side interface if it has one.
type End struct {
	Container string   `json:"container"` // the container's name
	ID        string   `json:"id"`        // the short ID
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

// State is the state of a link, or of the connection between a container and its segment.
type State string

// The states. The empty State is unknown.
const (
	Up     State = "up"
	Down   State = "down"
	Broken State = "broken" // a link is missing, or not connected with the next one
	// the links are as they should be, and rules of the packet filter are missing
	RulesMissing State = "rules missing"
)

// Faulty reports whether something is not as it should be.
func (s State) Faulty() bool { return s == Down || s == Broken || s == RulesMissing }

// Fold keeps at most n interfaces of each segment, and counts the others. 0 is no limit.
func (g *Graph) Fold(n int) {
	for i := range g.Segments {
		if s := &g.Segments[i]; n > 0 && len(s.Ends) > n {
			s.More += len(s.Ends) - n
			s.Ends = s.Ends[:n]
		}
	}
}

// others returns the other interfaces of an end's container, so that a reader finds them.
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

// containers returns the containers in order, each as its first end with the ports and marks of all its ends.
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

// missing returns the elements of more that list lacks.
func missing(list, more []string) []string {
	return slices.DeleteFunc(slices.Clone(more), func(s string) bool { return slices.Contains(list, s) })
}

// title returns the lines of text that describe a container.
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

// wire returns the lines of text at the line between a segment and a container.
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

// title returns the lines of text that describe a segment.
func (s Segment) title() []string {
	head := strings.TrimSpace(s.Kind + " " + s.Name)
	if s.Up != Up && s.Up != "" {
		head += " (" + string(s.Up) + ")"
	}
	return slices.Concat([]string{head}, s.Facts)
}

// more says how many interfaces are not drawn.
func (s Segment) more() string { return fmt.Sprintf("and %d more", s.More) }

// visible replaces each unprintable byte and character by a mark.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
