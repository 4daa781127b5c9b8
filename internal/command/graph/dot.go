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
	styles := map[part]string{theHost: ", fillcolor=\"#dbe7f3\"", aSegment: ", shape=box, fillcolor=\"#e4f0e6\"",
		theRest: ", style=dashed"}
	g.walk(func(id string, of part, lines []string) {
		fmt.Fprintf(w, "\t%s [label=%s%s];\n", id, dotText(lines), styles[of])
	}, func(from, to string, of part, broken bool, lines []string) {
		switch {
		case of != aContainer:
			fmt.Fprintf(w, "\t%s -- %s;\n", from, to)
		case broken:
			fmt.Fprintf(w, "\t%s -- %s [label=%s, style=dashed, color=red];\n", from, to, dotText(lines))
		default:
			fmt.Fprintf(w, "\t%s -- %s [label=%s];\n", from, to, dotText(lines))
		}
	})
	fmt.Fprint(w, "}\n")
	return w.Flush()
}

// dotText returns lines of text as a quoted string for Graphviz, in which backslashes are escapes (\G and \N stand
// for names).
func dotText(lines []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for i, l := range lines {
		lines[i] = escape.Replace(visible(l))
	}
	return `"` + strings.Join(lines, `\n`) + `"`
}
