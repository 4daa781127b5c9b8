package main

import (
	"fmt"
	"html"
	"path"
	"regexp"
	"strings"
)

// A manual is a manual page as HTML. It reads the requests of man(7) that docs/man has, which internal/docgen writes.
type manual struct {
	file, name, says string
	body             string
	parts            []section
}

func (m manual) sections() []section {
	return append([]section{{heading: m.name, level: 1, text: m.says}}, m.parts...)
}

var fonts = strings.NewReplacer(`\-`, "-", `\&amp;`, "", `\fB`, "<b>", `\fI`, "<i>", `\fP`, "</>", `\fR`, "</>")

// inline is a line's text with its fonts. A font ends where the next begins, or the line.
func inline(line string) string {
	var b strings.Builder
	open := ""
	for part := range strings.SplitSeq(fonts.Replace(html.EscapeString(line)), "<") {
		tag, rest, ok := strings.Cut(part, ">")
		switch {
		case !ok:
			b.WriteString(part)
			continue
		case open != "":
			b.WriteString("</" + open + ">")
			open = ""
		}
		if tag != "/" {
			open = tag
			b.WriteString("<" + tag + ">")
		}
		b.WriteString(rest)
	}
	if open != "" {
		b.WriteString("</" + open + ">")
	}
	return b.String()
}

var reference = regexp.MustCompile(`<b>((?:fairlead|cni)[a-z0-9-]*)</b>\(([157])\)`)

func readManual(file, content string) manual {
	m := manual{file: file, name: strings.TrimSuffix(path.Base(file), path.Ext(file)) + "(" + path.Ext(file)[1:] + ")"}
	var b strings.Builder
	closing, heading, term, code := "", "", false, false
	end := func() { b.WriteString(closing); closing = "" }
	for line := range strings.Lines(content) {
		line = strings.TrimSuffix(line, "\n")
		request, rest, _ := strings.Cut(line, " ")
		switch {
		case request == ".EX" || request == ".EE":
			end()
			code = request == ".EX"
			b.WriteString(map[bool]string{true: "<pre><code>", false: "</code></pre>\n"}[code])
		case request == ".SH":
			end()
			heading = strings.Trim(rest, `"`)
			id := slug(heading)
			m.parts = append(m.parts, section{id: id, heading: heading, level: 2})
			fmt.Fprintf(&b, "<h2 id=%q>%s</h2>\n", id, inline(heading))
		case request == ".PP":
			end()
		case request == ".TP":
			end()
			term = true
		case strings.HasPrefix(line, ".") || strings.HasPrefix(line, `'`):
		case code:
			b.WriteString(inline(line) + "\n")
		case term:
			b.WriteString("<dl><dt>" + inline(line) + "</dt><dd>")
			closing, term = "</dd></dl>\n", false
		default:
			if heading == "NAME" && m.says == "" {
				_, m.says, _ = strings.Cut(line, `\- `)
				m.says = strings.ReplaceAll(m.says, `\-`, "-")
			}
			if closing == "" {
				b.WriteString("<p>")
				closing = "</p>\n"
			}
			b.WriteString(inline(line) + "\n")
		}
		if n := len(m.parts); n > 0 && !strings.HasPrefix(line, ".") {
			m.parts[n-1].text += regexp.MustCompile(`\\f.|\\`).ReplaceAllString(line, "") + " "
		}
	}
	end()
	body := reference.ReplaceAllString(b.String(), `<a href="$1.$2.html"><b>$1</b>($2)</a>`)
	m.body = "<h1>" + m.name + "</h1>\n" + body
	return m
}

func manualIndex(all []manual) string {
	var b strings.Builder
	b.WriteString("<h1>Manual pages</h1>\n<table><tbody>\n")
	for _, m := range all {
		fmt.Fprintf(&b, "<tr><td><a href=%q>%s</a></td><td>%s</td></tr>\n", path.Base(fileOut(m.file)), m.name,
			html.EscapeString(m.says))
	}
	b.WriteString("</tbody></table>\n")
	return b.String()
}
