package graph

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// WriteDOT writes the graph for Graphviz: fairlead graph -o dot | dot -Tpdf.
func (g *Graph) WriteDOT(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprint(w, "graph fairlead {\n\trankdir=TB; nodesep=0.3; ranksep=0.9;\n"+
		"\tnode [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=\"sans-serif\", fontsize=11];\n"+
		"\tedge [fontname=\"monospace\", fontsize=9];\n")
	fmt.Fprintf(w, "\thost [label=%s, fillcolor=\"#dbe7f3\"];\n",
		dotText(append([]string{"host " + g.Host}, g.Uplinks...)))
	number := map[string]int{}
	for i, e := range g.containers() {
		number[e.Whole] = i
		fmt.Fprintf(w, "\tc%d [label=%s];\n", i, dotText(e.title()))
	}
	for i, s := range g.Segments {
		fmt.Fprintf(w, "\ts%d [label=%s, shape=box, fillcolor=\"#e4f0e6\"];\n\thost -- s%[1]d;\n", i, dotText(s.title()))
		for _, e := range s.Ends {
			style := ""
			if e.Wire == Down || e.Wire == Broken {
				style = ", style=dashed, color=red"
			}
			fmt.Fprintf(w, "\ts%d -- c%d [label=%s%s];\n", i, number[e.Whole], dotText(e.wire()), style)
		}
		if s.More > 0 {
			fmt.Fprintf(w, "\tm%d [label=%s, style=dashed];\n\ts%[1]d -- m%[1]d;\n", i, dotText([]string{s.more()}))
		}
	}
	fmt.Fprint(w, "}\n")
	return w.Flush()
}

// dotText is lines of text as a quoted string: a backslash is an escape there, \G and \N stand for names.
func dotText(lines []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for i, l := range lines {
		lines[i] = escape.Replace(visible(l))
	}
	return `"` + strings.Join(lines, `\n`) + `"`
}
