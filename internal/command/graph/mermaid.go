package graph

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// WriteMermaid writes the graph as a Mermaid flowchart, which GitHub and GitLab show in Markdown.
func (g *Graph) WriteMermaid(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprint(w, "flowchart TB\n")
	g.walk(func(id string, of part, lines []string) {
		if of == aContainer {
			fmt.Fprintf(w, "\t%s(%s)\n", id, mermaidText(lines))
		} else {
			fmt.Fprintf(w, "\t%s[%s]\n", id, mermaidText(lines))
		}
	}, func(from, to string, of part, broken bool, lines []string) {
		line, text := "---", ""
		if broken || of == theRest {
			line = "-.-"
		}
		if of == aContainer {
			text = "|" + mermaidText(lines) + "|"
		}
		fmt.Fprintf(w, "\t%s %s%s %s\n", from, line, text, to)
	})
	return w.Flush()
}

// mermaidText returns lines of text as a quoted string for Mermaid. All characters but letters, digits and a few
// harmless ones are written by their number, the only escape that Mermaid has.
func mermaidText(lines []string) string {
	var b strings.Builder
	for i, l := range lines {
		if i > 0 {
			b.WriteString("<br/>")
		}
		for _, r := range visible(l) {
			if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" .:/-,", r) {
				b.WriteRune(r)
			} else {
				fmt.Fprintf(&b, "#%d;", r)
			}
		}
	}
	return `"` + cmp.Or(b.String(), " ") + `"` // Mermaid does not accept an empty text
}
