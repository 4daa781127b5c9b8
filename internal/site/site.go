package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"html/template"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed page.html style.css search.js
var assets embed.FS

// contents is the page whose lists of links are the navigation.
const contents = "docs/index.md"

// build writes the site into the folder out and says how many pages it has.
func build(root, out, source string) (int, error) {
	pages, err := read(root)
	if err != nil {
		return 0, err
	}
	all, files := map[string]*page{}, map[string]bool{}
	for _, p := range pages {
		all[p.src] = p
	}
	if all[contents] == nil {
		return 0, fmt.Errorf("there is no %s", contents)
	}
	nav := navigation(all[contents])
	bad := unlisted(pages, nav)
	manuals, err := filepath.Glob(filepath.Join(root, "docs/man/*.[1-8]"))
	if err != nil {
		return 0, err
	}
	for _, name := range manuals {
		files["docs/man/"+filepath.Base(name)] = true
	}
	for _, p := range pages {
		bad = append(bad, resolve(p, all, root, source, files)...)
	}
	if len(bad) > 0 {
		return 0, errors.New(strings.Join(bad, "\n"))
	}
	if err := os.RemoveAll(out); err != nil {
		return 0, err
	}
	s := &site{root: root, dir: out, nav: nav, pages: pages}
	return s.write(slices.Sorted(maps.Keys(files)))
}

type site struct {
	root, dir string
	nav       []group
	pages     []*page
	index     []entry
	written   int // HTML pages
}

// A group is a heading of the navigation and what stands below it.
type group struct {
	Heading string
	Items   []item
}

type item struct {
	Label, To string // To is a path in the site
	Here      bool
	Below     []item
}

// An entry of the search index: one section of a page. The names are short because the file has a thousand.
type entry struct {
	Page    string `json:"p"`
	Heading string `json:"h"`
	To      string `json:"u"`
	Text    string `json:"t"`
}

// navigation is what the contents list, under their second-level headings. The links are those of the tree.
func navigation(p *page) (nav []group) {
	for line := range strings.Lines(string(p.text)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			nav = append(nav, group{Heading: strings.TrimSpace(heading)})
			continue
		}
		rest, ok := strings.CutPrefix(line, "- [")
		label, rest, isLink := strings.Cut(rest, "](")
		to, _, _ := strings.Cut(rest, ")")
		if ok && isLink && len(nav) > 0 {
			last := &nav[len(nav)-1]
			last.Items = append(last.Items, item{Label: label, To: path.Join(path.Dir(p.src), to)})
		}
	}
	return nav
}

// unlisted names the documents to which the navigation does not lead. It leads to a folder by its README.md.
func unlisted(pages []*page, nav []group) (bad []string) {
	listed := map[string]bool{"README.md": true, contents: true}
	for _, g := range nav {
		for _, it := range g.Items {
			listed[it.To] = true
		}
	}
	for _, p := range pages {
		if !listed[p.src] && !listed[path.Dir(p.src)+"/README.md"] {
			bad = append(bad, p.src+": "+contents+" does not list it")
		}
	}
	return bad
}

func (s *site) write(files []string) (n int, err error) {
	for _, p := range s.pages {
		var body bytes.Buffer
		if err := markdown().Renderer().Render(&body, p.text, p.doc); err != nil {
			return 0, fmt.Errorf("%s: %w", p.src, err)
		}
		if err := s.page(p.out(), p.title, body.String(), p.sections); err != nil {
			return 0, err
		}
	}
	var manuals []manual
	for _, name := range files {
		content, err := os.ReadFile(filepath.Join(s.root, name))
		if err != nil {
			return 0, err
		}
		switch {
		case fileOut(name) == name:
		case strings.HasPrefix(name, "docs/man/"):
			m := readManual(name, string(content))
			manuals = append(manuals, m)
			if err := s.page(fileOut(name), m.name, m.body, m.sections()); err != nil {
				return 0, err
			}
			continue
		default:
			body := fmt.Sprintf("<h1>%s</h1>\n<p><a href=%q>The file itself</a></p>\n<pre><code>%s</code></pre>\n",
				path.Base(name), path.Base(name), html.EscapeString(string(content)))
			if err := s.page(fileOut(name), path.Base(name), body, nil); err != nil {
				return 0, err
			}
		}
		if err := s.file(name, content); err != nil {
			return 0, err
		}
	}
	if err := s.page("docs/man/index.html", "Manual pages", manualIndex(manuals), nil); err != nil {
		return 0, err
	}
	return s.written, s.assets()
}

// fileOut is where a file that is no document is in the site. A browser shows pictures and JSON by itself.
func fileOut(name string) string {
	switch path.Ext(name) {
	case ".svg", ".png", ".json":
		return name
	}
	return name + ".html"
}

func (s *site) assets() error {
	for _, name := range []string{"style.css", "search.js"} {
		content, err := assets.ReadFile(name)
		if err != nil {
			return err
		}
		if err := s.file(name, content); err != nil {
			return err
		}
	}
	index, err := json.Marshal(s.index)
	if err != nil {
		return err
	}
	// A script, because a browser reads no other file for a page that it has from a disk.
	return s.file("index.js", slices.Concat([]byte("searchIndex("), index, []byte(")\n")))
}

func (s *site) file(name string, content []byte) error {
	name = filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, content, 0o644)
}

// page writes a page with its navigation, and adds its sections to the index.
func (s *site) page(out, title, body string, sections []section) error {
	frame, err := template.ParseFS(assets, "page.html")
	if err != nil {
		return err
	}
	data := struct {
		Title, Top string
		Home       bool
		Nav        []group
		Inside     []item
		Body       template.HTML
	}{Title: title, Top: strings.TrimSuffix(relative(out, "x"), "x"), Home: out == "index.html",
		Body: template.HTML(body)}
	for _, g := range s.nav {
		here := group{Heading: g.Heading}
		for _, it := range g.Items {
			to := (&page{src: it.To}).out()
			if it.To == "docs/man" {
				to = "docs/man/index.html"
			}
			shown := item{Label: it.Label, To: relative(out, to), Here: to == out}
			if path.Base(to) == "index.html" && path.Dir(to) == path.Dir(out) && path.Dir(out) != "." {
				shown.Below = s.below(path.Dir(out), out)
			}
			here.Items = append(here.Items, shown)
		}
		data.Nav = append(data.Nav, here)
	}
	for _, sec := range sections {
		if sec.level == 2 {
			data.Inside = append(data.Inside, item{Label: sec.heading, To: "#" + sec.id})
		}
		to := out
		if sec.id != "" && sec.level > 1 {
			to += "#" + sec.id
		}
		if sec.heading != "" {
			s.index = append(s.index, entry{title, sec.heading, to, sec.text})
		}
	}
	var b bytes.Buffer
	if err := frame.Execute(&b, data); err != nil {
		return err
	}
	s.written++
	return s.file(out, b.Bytes())
}

// below is the documents of a folder, but for its index.
func (s *site) below(dir, out string) (items []item) {
	for _, p := range s.pages {
		if path.Dir(p.src) == dir && path.Base(p.src) != "README.md" {
			items = append(items, item{Label: p.title, To: relative(out, p.out()), Here: p.out() == out})
		}
	}
	return items
}
