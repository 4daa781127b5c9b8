package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/spf13/cobra"
)

// Every command that help lists is in docs/cli.md, and says in its own help what it does.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/cli.md")
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
	visit(root(&app.App{}))
}

// README.md lists every plugin, each once and with its page, and no other.
func TestReadmePlugins(t *testing.T) {
	page, err := os.ReadFile("../../../README.md")
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

// README.md quotes docs/performance.md: its figures are medians there.
func TestReadmeFigures(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| [^|]+ \| ([\d.]+) \| ([\d.]+) \|$`).FindAllStringSubmatch(string(readme), -1)
	if len(rows) != 3 {
		t.Fatalf("README.md has %d figures", len(rows))
	}
	for _, row := range rows {
		side := regexp.MustCompile(`\| ` + regexp.QuoteMeta(row[1]) + ` \[[^|]*\|[^|]*\| ` + regexp.QuoteMeta(row[2]) + ` \[`)
		if !side.Match(page) {
			t.Errorf("docs/performance.md does not have %s beside %s: write what it has into README.md", row[1], row[2])
		}
	}
}

// Every link in our documents leads to a file that is there, and to a heading in it if it names one.
func TestDocLinks(t *testing.T) {
	links, anchors := 0, 0
	for _, pattern := range []string{"../../../*.md", "../../../docs/*.md", "../../../docs/*/*.md"} {
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
					t.Errorf("%s: %v", strings.TrimPrefix(file, "../../../"), err)
				} else if m[2] != "" {
					anchors++
					if !slices.Contains(headings(t, target), m[2]) {
						t.Errorf("%s: %s has no heading %s", strings.TrimPrefix(file, "../../../"), target, m[2])
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

// Each test that a document names beside its package exists there.
func TestDocTests(t *testing.T) {
	named := 0
	for _, file := range []string{"../../../SECURITY.md", "../../../docs/security.md", "../../../docs/advisories.md",
		"../../../docs/compatibility.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`([a-z0-9/]+)` ((?:Test\\w+(?: \\([^)]*\\))?(?:, )?)+)").FindAllStringSubmatch(string(text), -1) {
			for _, test := range regexp.MustCompile(`Test\w+`).FindAllString(m[2], -1) {
				named++
				if !has(t, filepath.Join("../../..", m[1]), "func "+test+"(") {
					t.Errorf("%s: there is no %s in %s", file, test, m[1])
				}
			}
		}
	}
	if named < 30 {
		t.Errorf("%d tests are named: this one does not see them", named)
	}
}

// has says whether a test file of the package in dir has the text.
func has(t *testing.T, dir, text string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		content, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(content), text)
	})
}
