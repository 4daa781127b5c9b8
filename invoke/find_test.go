package invoke_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/invoke"
)

// clause: R11 I1 C2
func TestFind(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	file := func(dir, name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	both := file(first, "both", 0o755)
	file(second, "both", 0o755)
	bridge := file(second, "bridge", 0o755)
	plain := file(first, "plain", 0o644) // damaged: found all the same, and running it says so
	file(second, "plain", 0o755)
	behind := file(second, "behind", 0o755)
	linked := filepath.Join(first, "linked")
	if err := errors.Join(
		os.Mkdir(filepath.Join(first, "behind"), 0o755), // a directory of that name is no plugin
		os.Mkdir(filepath.Join(first, "folder"), 0o755),
		os.Symlink(bridge, linked),
		os.Symlink("/nowhere/at-all", filepath.Join(first, "dangling")),
	); err != nil {
		t.Fatal(err)
	}
	dirs := []string{first, "/does/not/exist", "", second}
	for _, tc := range []struct {
		typ, want string
		says      []string // in the error
		missing   bool     // the error is ErrNotFound
	}{
		{typ: "both", want: both},
		{typ: "bridge", want: bridge},
		{typ: "plain", want: plain},
		{typ: "behind", want: behind},
		{typ: "linked", want: linked},
		{typ: "brigde", missing: true, says: []string{`"brigde"`, first, second, `did you mean "bridge"?`}},
		{typ: "Bridge", missing: true, says: []string{`did you mean "bridge"?`}},
		{typ: "macvlan", missing: true, says: []string{`"macvlan"`}},
		{typ: "folder", missing: true, says: []string{"is a directory"}},
		{typ: "dangling", missing: true, says: []string{"link to /nowhere/at-all"}},
		{typ: "", says: []string{"type"}},
		{typ: "../both", says: []string{"../both"}},
		{typ: "/bin/sh", says: []string{"/bin/sh"}},
		{typ: "a/b", says: []string{"a/b"}},
		{typ: `a\b`, says: []string{`a\\b`}},
		{typ: "..", says: []string{".."}},
		{typ: ".", says: []string{`"."`}},
	} {
		t.Run(strings.ReplaceAll(tc.typ, "/", "|"), func(t *testing.T) {
			got, err := invoke.Find(tc.typ, dirs)
			if got != tc.want || (err != nil) != (tc.want == "") {
				t.Fatalf("got %q, %v, want %q", got, err, tc.want)
			}
			if errors.Is(err, invoke.ErrNotFound) != tc.missing {
				t.Errorf("%v: is not found: %v", err, !tc.missing)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v: says no %s", err, s)
				}
			}
		})
	}
	if _, err := invoke.Find("bridge", []string{""}); !errors.Is(err, invoke.ErrNotFound) ||
		!strings.Contains(err.Error(), "no plugin directory") {
		t.Errorf("without directories: %v", err)
	}
}

// A relative directory must not turn into a search of PATH, nor change with the working directory.
func TestFindRelative(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("sh", nil, 0o755); err != nil {
		t.Fatal(err)
	}
	path, err := invoke.Find("sh", []string{"."})
	if err != nil || !filepath.IsAbs(path) || path == "/bin/sh" {
		t.Errorf("got %q, %v, want the file in the working directory, absolute", path, err)
	}
}

// An empty element of CNI_PATH, as in "", ":", "/a::/b" and "/a:", is no directory: in PATH of a shell it would be the
// working directory, where anybody may have put a program.
//
// clause: I1 R11
func TestFindNotInTheWorkingDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("bridge", nil, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, path := range []string{"", ":", "::", ":" + dir, dir + ":", dir + "::" + dir} {
		for _, dirs := range [][]string{filepath.SplitList(path), strings.Split(path, ":")} {
			if got, err := invoke.Find("bridge", dirs); !errors.Is(err, invoke.ErrNotFound) {
				t.Errorf("CNI_PATH %q: found %q, %v", path, got, err)
			}
			if _, err := invoke.Find("bridg", dirs); strings.Contains(err.Error(), "did you mean") {
				t.Errorf("CNI_PATH %q: %v", path, err)
			}
		}
	}
}

// A misspelt type is told apart from one that is not installed. What cannot be executed is no plugin.
func TestFindMisspelt(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for _, f := range []struct {
		dir, name string
		mode      os.FileMode
	}{
		{first, "tuning", 0o755}, {first, "README.md", 0o644}, {second, "bridge", 0o755}, {second, "tuning", 0o755},
	} {
		if err := os.WriteFile(filepath.Join(f.dir, f.name), nil, f.mode); err != nil {
			t.Fatal(err)
		}
	}
	for typ, hint := range map[string]string{"brigde": `did you mean "bridge"?`, "tunning": `did you mean "tuning"?`,
		"README.m": "", "vlan": ""} {
		_, err := invoke.Find(typ, []string{first, "/does/not/exist", second})
		if got := strings.Contains(err.Error(), "did you mean"); got != (hint != "") || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s: %v", typ, err)
		}
	}
}
