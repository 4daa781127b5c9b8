package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == jailed {
		main()
	}
	os.Exit(m.Run())
}

// Each operator changes what it says, and nothing else is changed.
func TestOperators(t *testing.T) {
	all, err := mutantsOf("testdata", "operators")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, strings.TrimPrefix(m.String(), "operators/operators.go "))
	}
	want := []string{
		"Sum: if n < 0 { => if !(n < 0) {",
		"Sum: if n < 0 { => if n <= 0 {",
		"Sum: if n < 0 { => if n < 1 {",
		"Sum: return 0, errNegative => return 0, nil",
		"Sum: return 0, errNegative => return 1, errNegative",
		"Sum: for i := 0; i < n; i++ { => for i := 0; !(i < n); i++ {",
		"Sum: for i := 0; i < n; i++ { => for i := 1; i < n; i++ {",
		"Sum: for i := 0; i < n; i++ { => for i := 0; i <= n; i++ {",
		"Sum: if i%2 == 0 { => if !(i%2 == 0) {",
		"Sum: if i%2 == 0 { => if i%3 == 0 {",
		"Sum: if i%2 == 0 { => if i%2 == 1 {",
		"Sum: sum += i => nothing",
		"(*Counter).Add: c.mu.Lock() => nothing",
		"(*Counter).Add: defer c.mu.Unlock() => c.mu.Unlock()",
		"(*Counter).Add: defer c.mu.Unlock() => nothing",
		"(*Counter).Add: c.n++ => nothing",
		"(*Counter).Add: if !ok && c.n > 0 { => if !(!ok && c.n > 0) {",
		"(*Counter).Add: if !ok && c.n > 0 { => if !ok || c.n > 0 {",
		"(*Counter).Add: if !ok && c.n > 0 { => if !ok && c.n >= 0 {",
		"(*Counter).Add: if !ok && c.n > 0 { => if !ok && c.n > 1 {",
		"(*Counter).Add: c.lost++ => nothing",
		"Clean: func Clean(dir string) error { return os.RemoveAll(dir) } => func Clean(dir string) error { return nil }",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A survivor is told from what the tests notice, and one that is accepted from others. The tree does not change, and the
// sample of mutants is the same each time.
func TestSampling(t *testing.T) {
	accepted := filepath.Join(t.TempDir(), "accepted.txt")
	text := "# Nobody asks.\nsample/sample.go (*sums).add: s.lost++ => nothing\n\tNobody asks\n\tfor it.\n"
	if err := os.WriteFile(accepted, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	before := treeOf(t, "testdata")
	run := func(only, accepted string) (unnamed int, said string) {
		s := &sampling{root: "testdata", accepted: accepted, only: only, mutants: 100, seed: 1,
			targets: []*target{parseTarget("sample")}}
		unnamed, err := s.run(func(format string, args ...any) { said += fmt.Sprintf(format+"\n", args...) })
		if err != nil {
			t.Fatal(err)
		}
		return unnamed, said
	}

	unnamed, said := run("", accepted)
	if unnamed != 0 {
		t.Errorf("%d mutants survived", unnamed)
	}
	for _, want := range []string{
		"killed   sample/sample.go:12 (*sums).add\n\t- if a < 0 {\n\t+ if a <= 0 {\n",
		"killed   sample/sample.go:14 (*sums).add\n\t- return a, errNegative\n\t+ return a, nil\n",
		"survived sample/sample.go:13 (*sums).add\n\t- s.lost++\n\t+ \n\taccepted: Nobody asks for it.\n",
		"4 of 5 mutants died (0 by the bound on time); 1 survivors are accepted, 0 are not\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	again, said2 := run("if a < 0 {", "")
	if one, two := tried(said), tried(said2); again != 0 || len(two) != 3 || !slices.Equal(two, inBoth(one, two)) {
		t.Errorf("%q and then %q, of which %d survived", one, two, again)
	}
	if again, _ := run("lost", ""); again != 1 {
		t.Errorf("without the file, %d survivors are not accepted", again)
	}
	if after := treeOf(t, "testdata"); after != before {
		t.Errorf("the tree was\n%s\nand is\n%s", before, after)
	}
}

// inBoth are the lines of one that two has, too.
func inBoth(one, two []string) []string {
	return slices.DeleteFunc(slices.Clone(one), func(line string) bool { return !slices.Contains(two, line) })
}

// tried are the changed lines of a report.
func tried(said string) (lines []string) {
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "\t+") {
			lines = append(lines, line)
		}
	}
	return lines
}

// treeOf is all files of a directory.
func treeOf(t *testing.T, dir string) (all string) {
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all += path + "\n" + string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What a mutant does to files and processes, it does in its jail.
func TestJail(t *testing.T) {
	work := t.TempDir()
	outside := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(outside, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]int{
		"exit 0":                       0,
		"exit 7":                       7,
		"rm -f " + outside:             1,
		"echo x >> " + outside:         2,
		"kill -9 -1; exit 3":           3,
		"echo x > $TMPDIR/x":           0,
		"test $$ -lt 100":              0,
		"ulimit -v unlimited":          2,
		"(exec sleep 600 &) ; exit 5":  5,
		"test -e " + outside + " || :": 0,
	} {
		cmd := jail(work, "/", "/bin/sh", "-c", script)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: exit status %d, want %d: %s", script, got, want, out)
		}
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "text" {
		t.Errorf("outside: %q, %v", text, err)
	}
}

// Each mutant that may survive is one that can be made, so an entry of a line that was changed is removed.
func TestAccepted(t *testing.T) {
	const root = "../../.."
	reasons, err := readAccepted("accepted.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]map[string]bool{} // mutants by their package
	for name := range reasons {
		dir := filepath.Dir(strings.Fields(name)[0])
		if known[dir] == nil {
			all, err := mutantsOf(root, dir)
			if err != nil {
				t.Fatal(err)
			}
			known[dir] = map[string]bool{}
			for _, m := range all {
				known[dir][m.String()] = true
			}
		}
		if !known[dir][name] {
			t.Errorf("accepted.txt names what is no mutant any more: %s", name)
		}
	}
	for text, want := range map[string]string{
		"\ta reason\n":       "a reason without a mutant: a reason",
		"a/b.go f: x => y\n": "a/b.go f: x => y has no reason: write it below, indented",
	} {
		path := filepath.Join(t.TempDir(), "accepted")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readAccepted(path); err == nil || err.Error() != path+": "+want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
