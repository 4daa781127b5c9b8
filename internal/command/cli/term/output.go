// Package term prints text on a terminal. It escapes data, colours words, and aligns tables and trees. It knows
// nothing of networks.
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

// Names, notes and errors come from files that any user may have written. A control sequence in them could move the
// cursor or hide a line. So printed text has two types: string is data, which is escaped when printed, and Shown is
// text that is safe already.

// Shown is text that is safe to print. It may contain Fairlead's colours.
type Shown string

// Printable escapes text as Go does: control characters, line ends, characters that change the direction of writing,
// and bytes that are not UTF-8.
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

// Sprintf is fmt.Sprintf, but it escapes each argument that is not Shown.
func Sprintf(format string, args ...any) Shown {
	safe := make([]any, len(args))
	for i, arg := range args {
		safe[i] = arg
		if _, shown := arg.(Shown); !shown {
			safe[i] = datum{arg}
		}
	}
	return Shown(fmt.Sprintf(format, safe...))
}

// datum formats v, escaped.
type datum struct{ v any }

// Format implements fmt.Formatter.
func (d datum) Format(f fmt.State, verb rune) {
	io.WriteString(f, string(Printable(fmt.Sprintf(fmt.FormatString(f, verb), d.v))))
}

// Lines returns the text of an error. Further lines, as of joined errors, are indented below the first.
func Lines(err error) Shown {
	var all []string
	for _, line := range strings.Split(strings.TrimRight(err.Error(), "\n"), "\n") {
		all = append(all, string(Printable(line)))
	}
	return Shown(strings.Join(all, "\n          "))
}

// Doubtful is what the warning of another program's chain says.
const Doubtful = "another program's chain may drop the container's packets"

// Screen passes on the output of other programs with control sequences escaped, and prints plugins' logs as notes.
// It prints a log line only once, because a plugin may run several times after a failure.
type Screen struct {
	io.Writer
	Said *sync.Map
}

// NewScreen returns a Screen that prints on w.
func NewScreen(w io.Writer) Screen { return Screen{w, new(sync.Map)} }

// Write implements io.Writer.
func (s Screen) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		text, end := strings.CutSuffix(line, "\n")
		if note := reformat(text); note != text {
			// The caller says it, and knows the names of networks and links.
			known := func(text string) bool {
				_, said := s.Said.Load(text)
				return said && strings.Contains(note, text)
			}
			if _, again := s.Said.LoadOrStore(note, true); again || known(rtnl.Overlapping) || known(Doubtful) {
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

// Style colours words if On is set, on a terminal.
type Style struct{ On bool }

func (s Style) paint(code, text string) Shown {
	if !s.On || text == "" {
		return Printable(text)
	}
	return "\x1b[" + Shown(code) + "m" + Printable(text) + "\x1b[0m"
}

// Bold returns text in bold.
func (s Style) Bold(text string) Shown { return s.paint("1", text) }

// Dim returns text of little importance.
func (s Style) Dim(text string) Shown { return s.paint("2", text) }

// Good returns text about a correct state, in green.
func (s Style) Good(text string) Shown { return s.paint("32", text) }

// Bad returns text about a fault, in red.
func (s Style) Bad(text string) Shown { return s.paint("31", text) }

// Doubt returns text about an uncertain state, in yellow.
func (s Style) Doubt(text string) Shown { return s.paint("33", text) }

// width returns how many columns text takes, without colours.
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

// Table prints rows in aligned columns. The first row has the titles. A cell is Shown or data.
type Table [][]any

// Print prints the rows, with aligned columns.
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

// Tree is a line and the lines below it.
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

// Print prints t and the lines below it.
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

// PrintJSON prints v as one indented JSON document.
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

// PrintableJSON escapes characters in a JSON document that a terminal could obey. The document's meaning does not
// change: they occur only inside strings.
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
