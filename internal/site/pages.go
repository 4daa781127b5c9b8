package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// A page is one document of the tree.
type page struct {
	src      string // its path in the tree, such as docs/ipam.md
	title    string
	sections []section
	links    []link
	doc      ast.Node
	text     []byte
}

// A section is a heading and what stands below it, up to the next one.
type section struct {
	id, heading, text string
	level             int
}

// A link is what a document leads to; set replaces its destination.
type link struct {
	to  string
	set func(string)
}

// out is the page's path in the site. Folders stay as they are in the tree, so that most links stay, too.
func (p *page) out() string {
	dir, name := path.Split(p.src)
	if name == "README.md" {
		return dir + "index.html"
	}
	return strings.TrimSuffix(p.src, ".md") + ".html"
}

func markdown() goldmark.Markdown {
	return goldmark.New(goldmark.WithExtensions(extension.Table),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(html.WithUnsafe())) // all of it is ours
}

// read reads all documents: those of the root and of docs/.
func read(root string) (pages []*page, err error) {
	var names []string
	top, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		return nil, err
	}
	names = append(names, top...)
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	})
	for _, name := range names {
		content, e := os.ReadFile(name)
		rel, r := filepath.Rel(root, name)
		err = errors.Join(err, e, r)
		pages = append(pages, parse(rel, content))
	}
	return pages, err
}

func parse(src string, content []byte) *page {
	p := &page{src: src, text: content}
	ids := &githubIDs{seen: map[string]int{}}
	p.doc = markdown().Parser().Parse(text.NewReader(content),
		parser.WithContext(parser.NewContext(parser.WithIDs(ids))))
	p.sections = []section{{}}
	ast.Walk(p.doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			id, _ := n.AttributeString("id")
			heading := words(n, content)
			if n.Level == 1 && p.title == "" {
				p.title = heading
			}
			p.sections = append(p.sections, section{id: string(id.([]byte)), heading: heading, level: n.Level})
			return ast.WalkContinue, nil
		case *ast.Link:
			p.links = append(p.links, link{string(n.Destination), func(to string) { n.Destination = []byte(to) }})
		case *ast.Image:
			p.links = append(p.links, link{string(n.Destination), func(to string) { n.Destination = []byte(to) }})
		}
		if n.Type() == ast.TypeBlock && n.Kind() != ast.KindHeading &&
			(n.FirstChild() == nil || n.FirstChild().Type() == ast.TypeInline) {
			last := &p.sections[len(p.sections)-1]
			last.text += words(n, content) + " "
		}
		return ast.WalkContinue, nil
	})
	return p
}

// words is the text of a node without its markup.
func words(n ast.Node, content []byte) string {
	var b strings.Builder
	if n.Type() == ast.TypeBlock && n.FirstChild() == nil { // code
		b.Write(n.Lines().Value(content))
	}
	ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(content))
			if t.SoftLineBreak() || t.HardLineBreak() {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

// githubIDs names headings as GitHub does, so that an anchor works in both places.
type githubIDs struct{ seen map[string]int }

func (g *githubIDs) Generate(value []byte, _ ast.NodeKind) []byte {
	// The parser hands over the source of the heading: what is in a link's parentheses is none of its words.
	id := slug(string(value))
	n := g.seen[id]
	g.seen[id]++
	if n > 0 {
		id = fmt.Sprintf("%s-%d", id, n)
	}
	return []byte(id)
}

func (g *githubIDs) Put([]byte) {}

func slug(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(heading)) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

// resolve gives each link of a page its destination in the site, and reports those that lead nowhere. files are
// the files, other than pages, that the site needs.
func resolve(p *page, all map[string]*page, root, source string, files map[string]bool) (bad []string) {
	for _, l := range p.links {
		if strings.Contains(l.to, "://") || strings.HasPrefix(l.to, "mailto:") {
			continue
		}
		to, anchor, _ := strings.Cut(l.to, "#")
		target := p.src
		if to != "" {
			target = path.Join(path.Dir(p.src), to)
		}
		st, err := os.Stat(filepath.Join(root, target))
		q := all[target]
		switch {
		case err != nil:
			bad = append(bad, fmt.Sprintf("%s: %s: there is no %s", p.src, l.to, target))
		case st.IsDir() && all[target+"/README.md"] != nil:
			l.set(relative(p.out(), target+"/index.html"))
		case q != nil:
			if anchor != "" && !slices.ContainsFunc(q.sections, func(s section) bool { return s.id == anchor }) {
				bad = append(bad, fmt.Sprintf("%s: %s: %s has no such heading", p.src, l.to, target))
			}
			dest := relative(p.out(), q.out())
			if anchor != "" {
				dest += "#" + anchor
			}
			l.set(dest)
		case target == "docs/man":
			l.set(relative(p.out(), "docs/man/index.html"))
		case strings.HasPrefix(target, "docs/") && !st.IsDir():
			files[target] = true
			l.set(relative(p.out(), fileOut(target)))
		default:
			l.set(source + "/" + target)
		}
	}
	return bad
}

// relative is the way from one file of the site to another: it works without a server.
func relative(from, to string) string {
	rel, err := filepath.Rel(path.Dir(from), to)
	if err != nil {
		panic(err) // both are relative
	}
	return rel
}
