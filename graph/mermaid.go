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
	fmt.Fprintf(w, "\thost[%s]\n", mermaidText(append([]string{"host " + g.Host}, g.Uplinks...)))
	number := map[string]int{}
	for i, e := range g.containers() {
		number[e.Whole] = i
		fmt.Fprintf(w, "\tc%d(%s)\n", i, mermaidText(e.title()))
	}
	for i, s := range g.Segments {
		fmt.Fprintf(w, "\ts%d[%s]\n\thost --- s%[1]d\n", i, mermaidText(s.title()))
		for _, e := range s.Ends {
			line := "---"
			if e.Wire == Down || e.Wire == Broken {
				line = "-.-"
			}
			fmt.Fprintf(w, "\ts%d %s|%s| c%d\n", i, line, mermaidText(e.wire()), number[e.Whole])
		}
		if s.More > 0 {
			fmt.Fprintf(w, "\tm%d[%s]\n\ts%[1]d -.- m%[1]d\n", i, mermaidText([]string{s.more()}))
		}
	}
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
