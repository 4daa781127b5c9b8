package docgen

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated documents anew")

const root = "../.."

// generated is all documents, made where no plugin is installed.
func generated(t *testing.T) Files {
	t.Helper()
	t.Setenv("CNI_PATH", "")
	files, err := Generate(root)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestCurrent(t *testing.T) {
	files := generated(t)
	if *update {
		if err := Write(root, files); err != nil {
			t.Fatal(err)
		}
	}
	stale, err := Stale(root, files)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stale {
		t.Errorf("%s\n(`make generate` writes it anew)", s)
	}
}

// A file that differs, one that is missing and one without a source are all said, and Write fixes them.
func TestStale(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, Files{"docs/a.md": []byte("one\ntwo\n"), "docs/plugins/gone.md": []byte("x")}); err != nil {
		t.Fatal(err)
	}
	files := Files{"docs/a.md": []byte("one\n2\n"), "docs/plugins/b.md": []byte("b")}
	stale, err := Stale(dir, files)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"docs/a.md is out of date at line 2:\n  has   two\n  wants 2",
		"docs/plugins/b.md is missing", "docs/plugins/gone.md has no source any more"}
	if !slices.Equal(stale, want) {
		t.Errorf("stale: %q, want %q", stale, want)
	}
	if err := Write(dir, files); err != nil {
		t.Fatal(err)
	}
	if stale, err := Stale(dir, files); err != nil || len(stale) > 0 {
		t.Errorf("after Write: %q, %v", stale, err)
	}
}

func TestProofs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a/a_test.go": `package a

// TestA does.
//
// clause: P1 P2
func TestA(t *testing.T) {
	// clause: P3, P4
	t.Run("with words", func(t *testing.T) {})
	for _, tc := range []x{
		// clause: P5
		{"row"},
	} {
	}
}
`,
		"a/testdata/x.txtar":    "# clause: V1\n# clause:V2\n",
		"a/testdata/no_test.go": "package a\n\n// clause: P9\nfunc TestB() {}\n",
		".git/b_test.go":        "// clause: P9",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	proofs, err := findProofs(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range proofs {
		got = append(got, p.file+" "+p.test+" "+strings.Join(p.ids, "+"))
	}
	want := []string{"a/a_test.go TestA P1+P2", "a/a_test.go TestA/with_words P3+P4", "a/a_test.go TestA P5",
		"a/testdata/x.txtar x.txtar V1", "a/testdata/x.txtar x.txtar V2"}
	if !slices.Equal(got, want) {
		t.Errorf("proofs:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, err := testProofs("x_test.go", []byte("package x\n\n// clause: P1\n\nvar y int\n")); err == nil {
		t.Error("a clause comment that belongs to nothing is no error")
	}
}
