package graph

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// WriteMermaid writes the graph as a flowchart of Mermaid, which GitHub and others show in Markdown.
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

// mermaidText is lines of text as a quoted string. What is neither a letter nor a digit is written by its number, but
// for a few that mean nothing there: Mermaid knows no other escape.
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
	return `"` + cmp.Or(b.String(), " ") + `"` // an empty one is no text to Mermaid
}
