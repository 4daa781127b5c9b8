package dist

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Readers copy what our pages tell them to run: each page is run in a throw-away host of its own, after `make build`. Blocks of
// "sh" are run one after the other, and a block of "text" below one is what it prints. "…" stands for what differs from host to host,
// on a line of its own for any lines. Blocks of "json" are written to the file that the line before names.
func TestDocCommands(t *testing.T) {
	bin := build(t)
	how, err := filepath.Glob("../../docs/howto/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(how, "../../docs/getting-started.md", "../../docs/plugin-author.md",
		"../../docs/runtime-author.md") {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".md"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !runPage(t, bin, string(text)) {
				t.Errorf("%s has no command", file)
			}
		})
	}
}

// A step of a page is a script and what it prints, or nil where the page does not say.
type step struct {
	script string
	says   []string
}

var confDir = regexp.MustCompile("`(/etc/cni/[^`]*)`[^`]*$")

// steps reads the blocks of a page line by line. A block in a list is indented.
func steps(page string) (all []step) {
	var kind, before string
	var block []string
	for line := range strings.Lines(page) {
		bare := strings.TrimSpace(line)
		switch {
		case kind == "" && strings.HasPrefix(bare, "```"):
			kind, block = strings.TrimPrefix(bare, "```")+" ", nil
		case kind == "" && bare != "":
			before += " " + bare
		case kind == "":
		case bare != "```":
			block = append(block, strings.TrimRight(line, "\n"))
		default:
			indent := line[:strings.Index(line, "`")]
			for i := range block {
				block[i] = strings.TrimPrefix(block[i], indent)
			}
			file := confDir.FindStringSubmatch(before)
			switch {
			case kind == "sh ":
				all = append(all, step{script: strings.Join(block, "\n")})
			case kind == "json " && file != nil:
				all = append(all, step{script: "cat >" + file[1] + " <<'END'\n" + strings.Join(block, "\n") + "\nEND"})
			case kind == "text " && len(all) > 0:
				all[len(all)-1].says = block
			}
			kind, before = "", ""
		}
	}
	return all
}

// runPage reports whether the page has commands at all.
func runPage(t *testing.T, bin, page string) bool {
	t.Helper()
	all := steps(page)
	dir := t.TempDir()
	if err := os.Symlink(bin, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	// make has built it all, and root of the throw-away host is who types.
	for name, does := range map[string]string{"make": "true", "sudo": `exec "$@"`, "systemctl": "true"} {
		write(t, filepath.Join(dir, "stubs", name), "#!/bin/sh\n"+does+"\n")
	}
	var script strings.Builder
	script.WriteString("set -e; exec 2>&1; export PATH=$PWD/stubs:$PWD/bin:$PATH HOME=$PWD\n" + withSource(t, dir))
	for i, s := range all {
		fmt.Fprintf(&script, "printf '\\n@@%d\\n'\n%s\n", i, s.script)
	}
	script.WriteString("printf '\\n@@end\\n'\n")
	cmd := exec.Command(filepath.Join(bin, "fairlead"), "host", "--", "sh", "-c", script.String())
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
		return true
	}
	rest := string(out)
	for i, s := range all {
		next := fmt.Sprintf("\n@@%d\n", i+1)
		if i == len(all)-1 {
			next = "\n@@end\n"
		}
		_, rest, _ = strings.Cut(rest, fmt.Sprintf("@@%d\n", i))
		said, _, _ := strings.Cut(rest, next)
		if s.says != nil && !matches(s.says, said) {
			t.Errorf("%s\nprints\n%s\nand the page says\n%s", s.script, said, strings.Join(s.says, "\n"))
		}
	}
	return len(all) > 0
}

// withSource has this tree in ~/src/fairlead, and what is built with it needs no network.
func withSource(t *testing.T, home string) string {
	t.Helper()
	tree, err := filepath.Abs("../..")
	if err == nil {
		err = os.Mkdir(filepath.Join(home, "src"), 0o755)
	}
	if err == nil {
		err = os.Symlink(tree, filepath.Join(home, "src/fairlead"))
	}
	if err != nil {
		t.Fatal(err)
	}
	dirs := strings.Fields(run(t, "go", "env", "GOCACHE", "GOMODCACHE"))
	return fmt.Sprintf("export GOCACHE=%s GOMODCACHE=%s GOPROXY=off GOSUMDB=off\n", dirs[0], dirs[1])
}

// matches compares words: columns are as wide as what stands in them.
func matches(says []string, said string) bool {
	var want strings.Builder
	for _, line := range says {
		if line == "…" {
			want.WriteString(`(?s:.*)`)
			continue
		}
		line = regexp.QuoteMeta(strings.Join(strings.Fields(line), " "))
		want.WriteString(strings.ReplaceAll(line, "…", `.*`) + `\n`)
	}
	var got strings.Builder
	for line := range strings.Lines(strings.TrimSpace(said)) {
		got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return regexp.MustCompile(`^` + want.String() + `$`).MatchString(got.String())
}
