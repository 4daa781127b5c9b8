// Package term is text for a terminal: what is data is escaped, words have colour, tables and trees are aligned. It
// knows nothing of networks, and of the command no more than that it prints.
package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// This is where text meets a terminal. Names, notes and errors come from files that anybody may have written, and what
// a terminal takes for a command in them would move its cursor or hide a line. So what is printed is made of two kinds
// of text: string, which is data and is escaped on its way, and shown, which has been.

// A Shown is text as a terminal may have it, colours of ours included.
type Shown string

// Printable is text with all escaped, as Go does it, that has no picture of its own: control characters, line ends,
// what turns the direction of writing, bytes that are no UTF-8.
func Printable(text string) Shown {
	if clean(text) {
		return Shown(text)
	}
	var b []byte
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && n == 1 || !unicode.IsPrint(r) {
			q := strconv.Quote(text[:n])
			b = append(b, q[1:len(q)-1]...)
		} else {
			b = append(b, text[:n]...)
		}
		text = text[n:]
	}
	return Shown(b)
}

func clean(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Sprintf is fmt's, with what the arguments say escaped, but for what is shown.
func Sprintf(format string, args ...any) Shown {
	safe := make([]any, len(args))
	for i, arg := range args {
		if safe[i] = arg; !isShown(arg) {
			safe[i] = datum{arg}
		}
	}
	return Shown(fmt.Sprintf(format, safe...))
}

func isShown(v any) bool { _, ok := v.(Shown); return ok }

// A datum formats what it holds, escaped.
type datum struct{ v any }

// Format implements fmt.Formatter.
func (d datum) Format(f fmt.State, verb rune) {
	io.WriteString(f, string(Printable(fmt.Sprintf(fmt.FormatString(f, verb), d.v))))
}

// Lines is the text of an error, whose lines, as joined errors have them, go on below the first one.
func Lines(err error) Shown {
	var all []string
	for _, line := range strings.Split(strings.TrimRight(err.Error(), "\n"), "\n") {
		all = append(all, string(Printable(line)))
	}
	return Shown(strings.Join(all, "\n          "))
}

// A Screen passes on what other programs print, without what a terminal would obey, and the logs of plugins as notes:
// once each, for a plugin is run more than once where something fails.
type Screen struct {
	io.Writer
	Said *sync.Map
}

// NewScreen is a screen that has said nothing yet.
func NewScreen(w io.Writer) Screen { return Screen{w, new(sync.Map)} }

// Write implements io.Writer.
func (s Screen) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		text, end := strings.CutSuffix(line, "\n")
		if note := told(text); note != text {
			_, known := s.Said.Load(rtnl.Overlapping) // said by who knows the networks' names
			if _, again := s.Said.LoadOrStore(note, true); again || known &&
				strings.Contains(note, rtnl.Overlapping) {
				continue
			}
			text = note
		}
		if text = string(Printable(strings.ReplaceAll(text, "\t", "    "))); end {
			text += "\n"
		}
		if _, err := io.WriteString(s.Writer, text); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// A Style puts colour around words, on a terminal only.
type Style struct{ On bool }

func (s Style) paint(code, text string) Shown {
	if !s.On || text == "" {
		return Printable(text)
	}
	return "\x1b[" + Shown(code) + "m" + Printable(text) + "\x1b[0m"
}

// Bold is text in bold.
func (s Style) Bold(text string) Shown { return s.paint("1", text) }

// Dim is text that may be passed over.
func (s Style) Dim(text string) Shown { return s.paint("2", text) }

// Good is text about what is in order, in green.
func (s Style) Good(text string) Shown { return s.paint("32", text) }

// Bad is text about a fault, in red.
func (s Style) Bad(text string) Shown { return s.paint("31", text) }

// Doubt is text about what is not sure, in yellow.
func (s Style) Doubt(text string) Shown { return s.paint("33", text) }

// width is how many columns text takes, colours not counted.
func width(text Shown) int {
	n := 0
	for {
		before, after, found := strings.Cut(string(text), "\x1b[")
		n += utf8.RuneCountInString(before)
		if !found {
			return n
		}
		_, after, _ = strings.Cut(after, "m")
		text = Shown(after)
	}
}

// A Table prints its rows in aligned columns, the first row as their titles. A cell is shown, or data.
type Table [][]any

// Print prints the rows, their columns aligned.
func (t Table) Print(w io.Writer, s Style) {
	var widths []int
	cells := make([][]Shown, len(t))
	for n, row := range t {
		for i, v := range row {
			cell := Sprintf("%v", v)
			if n == 0 {
				cell = s.Bold(string(cell))
			}
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(cell))
			cells[n] = append(cells[n], cell)
		}
	}
	for _, row := range cells {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(string(cell))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-width(cell)+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// A Tree is a line and the lines that belong to it.
type Tree struct {
	Text Shown
	Kids []*Tree
}

// Add adds a line below t.
func (t *Tree) Add(format string, args ...any) *Tree {
	kid := &Tree{Text: Sprintf(format, args...)}
	t.Kids = append(t.Kids, kid)
	return kid
}

// Print prints t and what is below.
func (t *Tree) Print(w io.Writer, s Style) {
	fmt.Fprintln(w, t.Text)
	t.printKids(w, s, "")
}

func (t *Tree) printKids(w io.Writer, s Style, indent string) {
	for i, kid := range t.Kids {
		branch, more := "├─ ", "│  "
		if i == len(t.Kids)-1 {
			branch, more = "└─ ", "   "
		}
		fmt.Fprintln(w, s.Dim(indent+branch)+kid.Text)
		kid.printKids(w, s, indent+more)
	}
}

// PrintJSON prints v as one indented document.
func PrintJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(PrintableJSON(b.Bytes()))
	return err
}

// PrintableJSON is a document with all escaped in its texts that has no picture of its own. It says the same: the lower
// control characters are escaped in any, and between texts there are none but line ends.
func PrintableJSON(doc []byte) []byte {
	if clean(strings.ReplaceAll(string(doc), "\n", "")) {
		return doc
	}
	var b []byte
	for _, r := range string(doc) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		case r > 0xffff:
			r -= 0x10000
			b = fmt.Appendf(b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return b
}
