package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/spf13/cobra"
)

// Every command that help lists is in docs/cli.md, and says in its own help what it does.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Short == "" && !c.Hidden {
			t.Errorf("%s does not say what it does", c.CommandPath())
		}
		if c.Runnable() && !c.Hidden && !strings.Contains(string(page), "`"+c.CommandPath()) {
			t.Errorf("docs/cli.md has nothing on %q", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit((&app{}).root())
}

// README.md lists every plugin, each once and with its page, and no other.
func TestReadmePlugins(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	all := plugin.All()
	for _, p := range all {
		if n := strings.Count(string(page), "["+p.Name+"](docs/plugins/"+p.Name+".md)"); n != 1 {
			t.Errorf("README.md has %s %d times", p.Name, n)
		}
	}
	if n := strings.Count(string(page), "](docs/plugins/"); n != len(all)+1 { // and the index
		t.Errorf("README.md has %d links to plugins' pages, for %d plugins", n, len(all))
	}
}

// Every link in our documents leads to a file that is there, and to a heading in it if it names one.
func TestDocLinks(t *testing.T) {
	links, anchors := 0, 0
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`\]\(([^)# ]*)(#[^) ]+)?[^)]*\)`).FindAllStringSubmatch(string(text), -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				links++
				target := filepath.Join(filepath.Dir(file), m[1])
				if m[1] == "" {
					target = file
				}
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%s: %v", strings.TrimPrefix(file, "../"), err)
				} else if m[2] != "" {
					anchors++
					if !slices.Contains(headings(t, target), m[2]) {
						t.Errorf("%s: %s has no heading %s", strings.TrimPrefix(file, "../"), target, m[2])
					}
				}
			}
		}
	}
	if links < 100 || anchors < 3 {
		t.Errorf("%d links, %d to headings: the test does not see them", links, anchors)
	}
}

// headings are the anchors of a document's headings, as GitHub names them.
func headings(t *testing.T, file string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	code := false
	for line := range strings.Lines(string(text)) {
		code = code != strings.HasPrefix(line, "```")
		heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || code || !strings.HasPrefix(line, "#") {
			continue
		}
		heading = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(heading)), " ", "-")
		all = append(all, "#"+regexp.MustCompile(`[^\pL\pN_-]`).ReplaceAllString(heading, ""))
	}
	return all
}
