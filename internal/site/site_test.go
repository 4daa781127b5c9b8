package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The site of this tree works from a disk: whatever a page leads to, a page, a heading or a picture, is in the folder.
func TestSite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "site")
	const source = "https://example.org/tree"
	n, err := build("../..", dir, source)
	if err != nil {
		t.Fatal(err)
	}
	text := map[string]string{}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b, e := os.ReadFile(name)
			text[name], err = string(b), e
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for name, content := range text {
		if filepath.Ext(name) != ".html" {
			continue
		}
		for _, m := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(content, -1) {
			if to, ok := strings.CutPrefix(m[1], source); ok {
				if _, err := os.Stat("../.." + to); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			to, anchor, _ := strings.Cut(m[1], "#")
			target := name
			if to != "" {
				target = filepath.Join(filepath.Dir(name), to)
			}
			if there, ok := text[target]; !ok || anchor != "" && !strings.Contains(there, `id="`+anchor+`"`) {
				t.Errorf("%s: %s leads nowhere", name, m[1])
			}
		}
	}
	if all := strings.Count(strings.Join(slices.Collect(maps.Keys(text)), "\n")+"\n", ".html\n"); n != all {
		t.Errorf("build counts %d pages, and the folder has %d", n, all)
	}
	if n < 100 || links < 5000 {
		t.Errorf("%d pages with %d links", n, links)
	}
	index := text[filepath.Join(dir, "index.js")]
	for _, want := range []string{`"u":"docs/plugins/bridge.html#keys"`, `"p":"fairlead-run(1)"`, "masquerade"} {
		if !strings.Contains(index, want) {
			t.Errorf("the search index lacks %s", want)
		}
	}
}

// A link, an anchor or a picture that leads nowhere ends the build, and so does a page that the contents do not list.
func TestBroken(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"README.md":             "# Top\n[a](docs/a.md#here) [b](docs/a.md#one--two) [c](docs/none.md)\n",
		"docs/index.md":         "# Contents\n\n## First\n\n- [A](a.md): a page\n- [Folder](folder/README.md)\n",
		"docs/a.md":             "# A\n\n## One & two\n\n![picture](none.svg) [top](../README.md#top) [out](https://example.org/none)\n",
		"docs/b.md":             "# B\n",
		"docs/folder/README.md": "# Folder\n",
		"docs/folder/c.md":      "# C\n\n[self](#c) [other](#d)\n",
	} {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, err := build(root, filepath.Join(root, "out"), "https://example.org")
	if err == nil {
		t.Fatal("no error")
	}
	got := strings.Split(err.Error(), "\n")
	slices.Sort(got)
	want := []string{
		"README.md: docs/a.md#here: docs/a.md has no such heading",
		"README.md: docs/none.md: there is no docs/none.md",
		"docs/a.md: none.svg: there is no docs/none.svg",
		"docs/b.md: docs/index.md does not list it",
		"docs/folder/c.md: #d: docs/folder/c.md has no such heading",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestInline(t *testing.T) {
	for in, want := range map[string]string{
		`\fBa\-b\fP \fIC\fP <d>`: "<b>a-b</b> <i>C</i> &lt;d&gt;",
		`\fBa\fIb`:               "<b>a</b><i>b</i>",
		`\&.conf`:                ".conf",
	} {
		if got := inline(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
