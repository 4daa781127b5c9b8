package graph

import "strconv"

// part says what a node stands for, or what an edge leads to.
type part int

const (
	theHost part = iota
	aContainer
	aSegment
	theRest // the interfaces of a segment that are not drawn
)

// walk calls node and edge for all nodes and edges, in an order in which DOT and Mermaid can be written: each edge
// after its nodes.
func (g *Graph) walk(node func(id string, of part, lines []string),
	edge func(from, to string, of part, broken bool, lines []string)) {
	node("host", theHost, append([]string{"host " + g.Host}, g.Uplinks...))
	container := map[string]string{}
	for i, e := range g.containers() {
		container[e.Whole] = "c" + strconv.Itoa(i)
		node(container[e.Whole], aContainer, e.title())
	}
	for i, s := range g.Segments {
		segment, rest := "s"+strconv.Itoa(i), "m"+strconv.Itoa(i)
		node(segment, aSegment, s.title())
		edge("host", segment, aSegment, false, nil)
		for _, e := range s.Ends {
			edge(segment, container[e.Whole], aContainer, e.Wire.Faulty(), e.wire())
		}
		if s.More > 0 {
			node(rest, theRest, []string{s.more()})
			edge(segment, rest, theRest, false, nil)
		}
	}
}
