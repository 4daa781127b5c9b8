package conformance

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
)

// A writer writes reports in a format.
type writer func(w io.Writer, reports []Report, verbose bool) error

// formats are the ways in which reports are written.
func formats() map[string]writer {
	return map[string]writer{"text": people, "json": document, "junit": junit, "tap": tap}
}

// count is how many outcomes have a status.
func (r Report) count(s Status) (n int) {
	for _, o := range r.Outcomes {
		if o.Status == s {
			n++
		}
	}
	return n
}

// title names the subject.
func (s Subject) title() string {
	if s.Kind == Runtime {
		return fmt.Sprintf("%s: runtime (%s)", s.Type, s.Path)
	}
	if s.Kind == "" {
		return visible(fmt.Sprintf("%s (%s)", s.Type, s.Path))
	}
	return excerpt(visible(fmt.Sprintf("%s: %s plugin, CNI %s (%s)", s.Type, s.Kind, join(s.Versions), s.Path)))
}

// visible replaces what could move a terminal's cursor by a mark.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// people writes text. Verbose also has what passed and what does not apply.
func people(w io.Writer, reports []Report, verbose bool) error {
	for _, r := range reports {
		fmt.Fprintln(w, r.Subject.title())
		for _, o := range r.Outcomes {
			for _, line := range o.lines(verbose) {
				fmt.Fprintln(w, "  "+line)
			}
		}
		_, err := fmt.Fprintf(w, "  %d passed, %d failed, %d could not be made, %d do not apply\n\n",
			r.count(Pass), r.count(Fail), r.count(Error), r.count(Skip))
		if err != nil {
			return err
		}
	}
	return nil
}

func (o Outcome) lines(verbose bool) (lines []string) {
	mark := map[Status]string{Pass: "ok", Skip: "-", Fail: "FAIL", Error: "ERROR"}[o.Status]
	switch {
	case !verbose && (o.Status == Pass || o.Status == Skip):
		return nil
	case o.Status == Skip:
		return []string{fmt.Sprintf("%-5s %-22s %s", mark, o.Check, o.Reason)}
	}
	lines = append(lines, fmt.Sprintf("%-5s %-22s %s", mark, o.Check, o.Title))
	if o.Status == Pass {
		return lines
	}
	for _, f := range o.facts() {
		value := strings.ReplaceAll(visible(f[1]), "\n", "\n"+strings.Repeat(" ", 18))
		lines = append(lines, fmt.Sprintf("      %-9s %s", f[0], value))
	}
	return lines
}

// facts are what a reader needs to correct a failure, by name.
func (o Outcome) facts() (list [][2]string) {
	sentence := ""
	if o.Clause != "" {
		sentence = fmt.Sprintf("%s: “%s”", o.Clause, o.Sentence)
	}
	for _, f := range [][2]string{{"clause", sentence}, {"expected", o.Expected}, {"seen", o.Seen},
		{"reason", o.Reason}, {"call", o.Call}, {"repeat", o.Repeat}} {
		if f[1] != "" {
			list = append(list, f)
		}
	}
	return list
}

// document writes JSON.
func document(w io.Writer, reports []Report, _ bool) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(struct {
		Reports []Report `json:"reports"`
	}{reports})
}

// tap writes the Test Anything Protocol, version 14.
func tap(w io.Writer, reports []Report, _ bool) error {
	var b strings.Builder
	n := 0
	for _, r := range reports {
		fmt.Fprintf(&b, "# %s\n", r.Subject.title())
		for _, o := range r.Outcomes {
			n++
			not, directive := "", ""
			switch o.Status {
			case Fail, Error:
				not = "not "
			case Skip:
				directive = " # SKIP " + o.Reason
			}
			title := strings.ReplaceAll(o.Title, "#", `\#`)
			fmt.Fprintf(&b, "%sok %d - %s %s %s%s\n", not, n, r.Subject.Type, o.Check, title, directive)
			if not == "" {
				continue
			}
			b.WriteString("  ---\n")
			for _, f := range o.facts() {
				value, err := json.Marshal(f[1]) // a JSON text is one of YAML
				if err != nil {
					return err
				}
				fmt.Fprintf(&b, "  %s: %s\n", f[0], value)
			}
			b.WriteString("  ...\n")
		}
	}
	_, err := fmt.Fprintf(w, "TAP version 14\n1..%d\n%s", n, b.String())
	return err
}

// junit writes the XML that most CI systems read.
func junit(w io.Writer, reports []Report, _ bool) error {
	var b strings.Builder
	b.WriteString(xml.Header + "<testsuites>\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "<testsuite name=%s tests=\"%d\" failures=\"%d\" errors=\"%d\" skipped=\"%d\">\n",
			attribute(r.Subject.title()), len(r.Outcomes), r.count(Fail), r.count(Error), r.count(Skip))
		for _, o := range r.Outcomes {
			name := attribute(o.Check + " " + o.Title)
			fmt.Fprintf(&b, "<testcase classname=%s name=%s>", attribute(r.Subject.Type), name)
			var text []string
			for _, f := range o.facts() {
				text = append(text, f[0]+": "+f[1])
			}
			element := map[Status]string{Fail: "failure", Error: "error"}[o.Status]
			switch {
			case o.Status == Skip:
				fmt.Fprintf(&b, "<skipped message=%s/>", attribute(o.Reason))
			case element != "":
				fmt.Fprintf(&b, "<%s message=%s>", element, attribute(o.Seen+o.Reason))
				xml.EscapeText(&b, []byte(strings.Join(text, "\n")))
				fmt.Fprintf(&b, "</%s>", element)
			}
			b.WriteString("</testcase>\n")
		}
		b.WriteString("</testsuite>\n")
	}
	_, err := io.WriteString(w, b.String()+"</testsuites>\n")
	return err
}

// attribute is a quoted value of XML.
func attribute(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	xml.EscapeText(&b, []byte(s))
	b.WriteByte('"')
	return b.String()
}

// list writes the checks.
func list(w io.Writer, only []string) error {
	for _, c := range Checks() {
		if !selects(only, c) {
			continue
		}
		var kinds []string
		for _, k := range c.Kinds {
			kinds = append(kinds, string(k))
		}
		slices.Sort(kinds)
		since := ""
		if c.from != "" {
			since = ", from " + string(c.from)
		}
		_, err := fmt.Fprintf(w, "%-22s %s (%s%s)\n%-22s “%s”\n", c.ID, c.Title, strings.Join(kinds, ", "), since, "",
			c.Sentence)
		if err != nil {
			return err
		}
	}
	return nil
}
