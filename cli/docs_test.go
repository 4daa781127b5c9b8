package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
		units, _ := filepath.Glob(filepath.Join(dest, prefix, "lib/systemd/system/*.*"))
		if len(units) != 4 {
			t.Fatalf("%s: units %q, want four", prefix, units)
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
		if starts != 5 {
			t.Errorf("%d commands in units, want 5", starts)
		}
	}
	if _, err := os.Stat(filepath.Join(dest, "opt/cni/bin/bridge")); err != nil {
		t.Error(err)
	}
}
