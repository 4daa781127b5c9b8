package dist

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What `make install` puts on a host is complete: units start programs that are there, and no document, manual page or
// unit leads to a file that is not. `make uninstall` removes it, and nothing of others.
func TestInstall(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "bin") // make uninstall writes there
	run(t, "cp", "-a", build(t), bin)
	for _, prefix := range []string{"/usr", "/usr/local"} {
		t.Run(prefix, func(t *testing.T) {
			dest := t.TempDir()
			stranger := filepath.Join(dest, "opt/cni/bin/stranger")
			write(t, stranger, "#!/bin/sh\n")
			args := []string{"--no-print-directory", "-C", "../..", "BIN=" + bin, "DESTDIR=" + dest, "PREFIX=" + prefix}
			run(t, "make", append(args, "install")...)
			share := filepath.Join(dest, prefix, "share")
			for _, file := range []string{"man/man1/fairlead.1", "man/man1/fairlead-run.1", "man/man5/cni-bridge.5",
				"man/man7/fairlead-environment.7",
				"doc/fairlead/README.md", "doc/fairlead/CHANGELOG.md", "doc/fairlead/cli.md", "doc/fairlead/plugins/bridge.md",
				"doc/fairlead/examples/bridge.conflist", "doc/fairlead/schema/bridge.schema.json", "bash-completion/completions/fairlead",
				"zsh/site-functions/_fairlead", "fish/vendor_completions.d/fairlead.fish"} {
				if st, err := os.Stat(filepath.Join(share, file)); err != nil || st.Mode() != 0o644 {
					t.Errorf("%s/share/%s: %v", prefix, file, err)
				}
			}
			for _, name := range strings.Fields(run(t, filepath.Join(dest, prefix, "bin/fairlead"), "plugins")) {
				speaks(t, filepath.Join(dest, "opt/cni/bin", name))
			}
			links(t, filepath.Join(share, "doc/fairlead"))
			pages(t, filepath.Join(share, "man"), share)
			starts(t, dest, prefix)
			completions(t, share)

			run(t, "make", append(args, "install")...) // over itself
			run(t, "make", append(args, "uninstall")...)
			if left := files(t, dest); !slices.Equal(left, []string{stranger}) {
				t.Errorf("uninstall leaves %q", left)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// files is every file below a directory.
func files(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// links fails for each link of a document that leads to no installed file.
func links(t *testing.T, doc string) {
	n := 0
	for _, path := range files(t, doc) {
		if filepath.Ext(path) != ".md" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)# ]+)[^)]*\)`).FindAllStringSubmatch(string(text), -1) {
			target := filepath.Join(filepath.Dir(path), m[1])
			n++
			if source, ok := strings.CutPrefix(m[1], "https://github.com/fairlead-cni/fairlead/blob/main/"); ok {
				target = filepath.Join("../..", source)
			} else if strings.Contains(m[1], "://") {
				continue
			} else if !strings.HasPrefix(target, doc) {
				t.Errorf("%s: %s leads out of what is installed", path, m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	if n < 50 {
		t.Errorf("%d links: the test does not see them", n)
	}
}

// pages fails for each document or manual page that a manual page names and that is not installed.
func pages(t *testing.T, man, share string) {
	n := 0
	for _, path := range files(t, man) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		plain := strings.NewReplacer(`\-`, "-", `\fB`, "", `\fP`, "").Replace(string(text))
		for _, name := range regexp.MustCompile(`/usr/share/(doc/fairlead/[a-z0-9./-]*[a-z0-9])`).FindAllStringSubmatch(plain, -1) {
			n++
			if _, err := os.Stat(filepath.Join(share, name[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		for _, m := range regexp.MustCompile(`\b((?:fairlead|cni)(?:-[a-z0-9-]+)?)\(([157])\)`).FindAllStringSubmatch(plain, -1) {
			n++
			if _, err := os.Stat(filepath.Join(man, "man"+m[2], m[1]+"."+m[2])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	if n < 50 {
		t.Errorf("%d references in manual pages: the test does not see them", n)
	}
}

// starts fails for each unit that starts a program which is not installed. The programs of a fleet were not
// built, so they have no units.
func starts(t *testing.T, dest, prefix string) {
	sources, err := filepath.Glob("../../packaging/systemd/*.*")
	if err != nil {
		t.Fatal(err)
	}
	sources = slices.DeleteFunc(sources, isOfFleet)
	units, err := filepath.Glob(filepath.Join(dest, prefix, "lib/systemd/system/*.*"))
	if err != nil || len(units) == 0 || len(units) != len(sources) {
		t.Fatalf("units %q, want %q: %v", units, sources, err)
	}
	for _, path := range units {
		n := 0
		for key, values := range unit(t, path) {
			if !strings.HasPrefix(key, "Service.Exec") {
				continue
			}
			for _, command := range values {
				n++
				program := strings.Fields(strings.TrimPrefix(command, "-"))[0]
				if st, err := os.Stat(filepath.Join(dest, program)); err != nil || st.Mode()&0o111 == 0 ||
					program != prefix+"/bin/fairlead" && filepath.Dir(program) != "/opt/cni/bin" {
					t.Errorf("%s: %s is not installed: %v", path, program, err)
				}
			}
		}
		if n == 0 && filepath.Ext(path) == ".service" {
			t.Errorf("%s starts nothing", path)
		}
	}
}

// completions fails for each script that its shell cannot read.
func completions(t *testing.T, share string) {
	for shell, file := range map[string]string{"bash": "bash-completion/completions/fairlead",
		"zsh":  "zsh/site-functions/_fairlead",
		"fish": "fish/vendor_completions.d/fairlead.fish"} {
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("%s is not asked: %v", file, err)
			continue
		}
		run(t, shell, "-n", filepath.Join(share, file))
	}
}
