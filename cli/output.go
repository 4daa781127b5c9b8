package cli

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

	"github.com/fairlead-cni/fairlead/kernel"
)

// This is where text meets a terminal. Names, notes and errors come from files that anybody may have written, and what
// a terminal takes for a command in them would move its cursor or hide a line. So what is printed is made of two kinds
// of text: string, which is data and is escaped on its way, and shown, which has been.

// A shown is text as a terminal may have it, colours of ours included.
type shown string

// printable is text with all escaped, as Go does it, that has no picture of its own: control characters, line ends,
// what turns the direction of writing, bytes that are no UTF-8.
func printable(text string) shown {
	if clean(text) {
		return shown(text)
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
	return shown(b)
}

func clean(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// sprintf is fmt's, with what the arguments say escaped, but for what is shown.
func sprintf(format string, args ...any) shown {
	safe := make([]any, len(args))
	for i, arg := range args {
		if safe[i] = arg; !isShown(arg) {
			safe[i] = datum{arg}
		}
	}
	return shown(fmt.Sprintf(format, safe...))
}

func isShown(v any) bool { _, ok := v.(shown); return ok }

// A datum formats what it holds, escaped.
type datum struct{ v any }

// Format implements fmt.Formatter.
func (d datum) Format(f fmt.State, verb rune) {
	io.WriteString(f, string(printable(fmt.Sprintf(fmt.FormatString(f, verb), d.v))))
}

// lines is the text of an error, whose lines, as joined errors have them, go on below the first one.
func lines(err error) shown {
	var all []string
	for _, line := range strings.Split(strings.TrimRight(err.Error(), "\n"), "\n") {
		all = append(all, string(printable(line)))
	}
	return shown(strings.Join(all, "\n          "))
}

// A screen passes on what other programs print, without what a terminal would obey, and the logs of plugins as notes:
// once each, for a plugin is run more than once where something fails.
type screen struct {
	io.Writer
	said *sync.Map
}

func newScreen(w io.Writer) screen { return screen{w, new(sync.Map)} }

// Write implements io.Writer.
func (s screen) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		text, end := strings.CutSuffix(line, "\n")
		if note := told(text); note != text {
			_, known := s.said.Load(kernel.Overlapping) // said by who knows the networks' names
			if _, again := s.said.LoadOrStore(note, true); again || known && strings.Contains(note, kernel.Overlapping) {
				continue
			}
			text = note
		}
		if text = string(printable(strings.ReplaceAll(text, "\t", "    "))); end {
			text += "\n"
		}
		if _, err := io.WriteString(s.Writer, text); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// A style puts colour around words, on a terminal only.
type style struct{ on bool }

func (s style) paint(code, text string) shown {
	if !s.on || text == "" {
		return printable(text)
	}
	return "\x1b[" + shown(code) + "m" + printable(text) + "\x1b[0m"
}

func (s style) bold(text string) shown  { return s.paint("1", text) }
func (s style) dim(text string) shown   { return s.paint("2", text) }
func (s style) good(text string) shown  { return s.paint("32", text) }
func (s style) bad(text string) shown   { return s.paint("31", text) }
func (s style) doubt(text string) shown { return s.paint("33", text) }

// width is how many columns text takes, colours not counted.
func width(text shown) int {
	n := 0
	for {
		before, after, found := strings.Cut(string(text), "\x1b[")
		n += utf8.RuneCountInString(before)
		if !found {
			return n
		}
		_, after, _ = strings.Cut(after, "m")
		text = shown(after)
	}
}

// A table prints its rows in aligned columns, the first row as their titles. A cell is shown, or data.
type table [][]any

func (t table) print(w io.Writer, s style) {
	var widths []int
	cells := make([][]shown, len(t))
	for n, row := range t {
		for i, v := range row {
			cell := sprintf("%v", v)
			if n == 0 {
				cell = s.bold(string(cell))
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

// A tree is a line and the lines that belong to it.
type tree struct {
	text shown
	kids []*tree
}

func (t *tree) add(format string, args ...any) *tree {
	kid := &tree{text: sprintf(format, args...)}
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

// print prints on stdout, with what the arguments say escaped.
func (a *app) print(format string, args ...any) {
	fmt.Fprint(a.stdout, sprintf(format, args...))
}

// note says something on stderr that is no failure.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.stderr, "fairlead: "+sprintf(format, args...))
}

// printJSON prints v as one indented document.
func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(printableJSON(b.Bytes()))
	return err
}

// printableJSON is a document with all escaped in its texts that has no picture of its own. It says the same: the lower
// control characters are escaped in any, and between texts there are none but line ends.
func printableJSON(doc []byte) []byte {
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
