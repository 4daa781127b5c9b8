package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// Every link in our documents leads to a file that is there.
func TestDocLinks(t *testing.T) {
	links := 0
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/plugins/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`\]\(([^)# ]+)[^)]*\)`).FindAllStringSubmatch(string(text), -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				links++
				if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
					t.Errorf("%s: %v", strings.TrimPrefix(file, "../"), err)
				}
			}
		}
	}
	if links < 100 {
		t.Errorf("%d links: the test does not see them", links)
	}
}

// What the units start is where `make install` puts it, as the documents say.
func TestInstall(t *testing.T) {
	bin, dest := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(bin, "cni"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fairlead", "cni/bridge", "cni/dhcp"} {
		if err := os.WriteFile(filepath.Join(bin, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, prefix := range []string{"/usr", "/usr/local"} {
		out, err := exec.Command("make", "-C", "..", "install", "BIN="+bin, "DESTDIR="+dest, "PREFIX="+prefix).CombinedOutput()
		if err != nil {
			t.Fatalf("make install: %v\n%s", err, out)
		}
		for _, file := range []string{"man/man1/fairlead.1", "man/man1/fairlead-run.1", "man/man5/cni-bridge.5", "man/man7/fairlead-environment.7",
			"doc/fairlead/CHANGELOG.md", "doc/fairlead/cli.md", "doc/fairlead/plugins/bridge.md", "doc/fairlead/examples/bridge.conflist"} {
			if st, err := os.Stat(filepath.Join(dest, prefix, "share", file)); err != nil || st.Mode() != 0o644 {
				t.Errorf("%s/share/%s: %v", prefix, file, err)
			}
		}
		units, _ := filepath.Glob(filepath.Join(dest, prefix, "lib/systemd/system/*.*"))
		if len(units) != 6 {
			t.Fatalf("%s: units %q, want six", prefix, units)
		}
		starts := 0
		for _, u := range units {
			text, err := os.ReadFile(u)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				key, command, _ := strings.Cut(line, "=")
				if !strings.HasPrefix(key, "Exec") {
					continue
				}
				starts++
				program, _, _ := strings.Cut(strings.TrimPrefix(command, "-"), " ")
				if st, err := os.Stat(filepath.Join(dest, program)); err != nil || st.Mode()&0o111 == 0 || !strings.HasPrefix(program, prefix+"/bin/") && program != "/opt/cni/bin/dhcp" {
					t.Errorf("%s: %s: %s is not installed: %v", u, strings.TrimSpace(line), program, err)
				}
			}
		}
		if starts != 7 {
			t.Errorf("%d commands in units, want 7", starts)
		}
	}
	if _, err := os.Stat(filepath.Join(dest, "opt/cni/bin/bridge")); err != nil {
		t.Error(err)
	}
}
