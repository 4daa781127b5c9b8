package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// A style puts colour around words, on a terminal only.
type style struct{ on bool }

func (s style) paint(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bold(text string) string  { return s.paint("1", text) }
func (s style) dim(text string) string   { return s.paint("2", text) }
func (s style) good(text string) string  { return s.paint("32", text) }
func (s style) bad(text string) string   { return s.paint("31", text) }
func (s style) doubt(text string) string { return s.paint("33", text) }

// width is how many columns text takes, colours not counted.
func width(text string) int {
	n := 0
	for {
		before, after, found := strings.Cut(text, "\x1b[")
		n += utf8.RuneCountInString(before)
		if !found {
			return n
		}
		_, text, _ = strings.Cut(after, "m")
	}
}

// A table prints its rows in aligned columns, the first row as their titles.
type table [][]string

func (t table) print(w io.Writer, s style) {
	var widths []int
	for _, row := range t {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(cell))
		}
	}
	for n, row := range t {
		var b strings.Builder
		for i, cell := range row {
			if n == 0 {
				cell = s.bold(cell)
			}
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-width(cell)+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// A tree is a line and the lines that belong to it.
type tree struct {
	text string
	kids []*tree
}

func (t *tree) add(format string, args ...any) *tree {
	kid := &tree{text: fmt.Sprintf(format, args...)}
	t.kids = append(t.kids, kid)
	return kid
}

func (t *tree) print(w io.Writer, s style) {
	fmt.Fprintln(w, t.text)
	t.printKids(w, s, "")
}

func (t *tree) printKids(w io.Writer, s style, indent string) {
	for i, kid := range t.kids {
		branch, more := "├─ ", "│  "
		if i == len(t.kids)-1 {
			branch, more = "└─ ", "   "
		}
		fmt.Fprintln(w, s.dim(indent+branch)+kid.text)
		kid.printKids(w, s, indent+more)
	}
}

// printJSON prints v as one indented document.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
