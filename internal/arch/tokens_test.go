package arch

import (
	"bufio"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const repository = "../.."

// limit is the number in the last row of a file. Each row says what the number was raised or lowered for.
func limit(t *testing.T, file string) (n int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		number, why, _ := strings.Cut(lines.Text(), " ")
		if n, err = strconv.Atoi(number); err != nil || why == "" {
			t.Fatalf("%s: %q: want a number, and what it is for", file, lines.Text())
		}
	}
	return n
}

func counts(t *testing.T) []Count {
	t.Helper()
	files, err := goFiles(repository)
	if err != nil {
		t.Fatal(err)
	}
	all, err := Counts(files, func(file string) ([]byte, error) {
		src, err := os.ReadFile(filepath.Join(repository, file))
		if os.IsNotExist(err) { // deleted, and not yet committed
			err = nil
		}
		return src, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The source does not grow by itself: who adds more than is left writes a row that says for what.
func TestTokens(t *testing.T) {
	var all, lines int
	for _, c := range counts(t) {
		if strings.HasPrefix(c.Package, "cluster/") {
			continue
		}
		all, lines = all+c.Tokens, lines+c.Lines
		t.Logf("%6d %4.1f a line  %s", c.Tokens, float64(c.Tokens)/float64(max(1, c.Lines)), c.Package)
	}
	t.Logf("%d tokens, %.1f a line", all, float64(all)/float64(lines))
	if most := limit(t, "tokens.txt"); all > most {
		t.Errorf("%d tokens outside cluster, at most %d: remove what is not needed, or add a row to tokens.txt", all, most)
	}
}

// A plugin is small, with the packages of resources that no other package imports.
func TestPluginTokens(t *testing.T) {
	const most = 15_000
	pkgs, err := List()
	if err != nil {
		t.Fatal(err)
	}
	importers := map[string][]string{}
	for _, p := range pkgs {
		for _, imp := range p.Imports {
			if room, ours := rel(imp); ours && strings.HasPrefix(room, "resource/") {
				name, _ := rel(p.ImportPath)
				importers[room] = append(importers[room], name)
			}
		}
	}
	own := map[string][]string{}
	for room, by := range importers {
		if len(by) == 1 {
			own[by[0]] = append(own[by[0]], room)
		}
	}

	size := map[string]int{}
	for _, c := range counts(t) {
		size[c.Package] = c.Tokens
	}
	if len(own["plugin/bandwidth"]) == 0 {
		t.Errorf("bandwidth has no resources of its own: %v", importers["resource/shape"])
	}
	for name, n := range size {
		for _, room := range own[name] {
			n += size[room]
		}
		if path.Dir(name) == "plugin" && n > most {
			t.Errorf("%s has %d tokens with %v, and at most %d", name, n, own[name], most)
		}
	}
}

// Authors of runtimes and of plugins have little to know.
func TestExported(t *testing.T) {
	var names []string
	for _, pkg := range []string{"spec", "invoke", "attach", "sdk", "sdk/sdktest", "plan"} {
		files, err := filepath.Glob(filepath.Join(repository, pkg, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = slices.DeleteFunc(files, func(file string) bool { return strings.HasSuffix(file, "_test.go") })
		if len(files) == 0 {
			t.Errorf("%s has no files", pkg)
		}
		for _, file := range files {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			more, err := Exported(src)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, more...)
			t.Logf("%s: %d", file, len(more))
		}
	}
	if most := limit(t, "exported.txt"); len(names) > most {
		t.Errorf("the promised packages export %d names, and at most %d", len(names), most)
	}
}

// A token is counted where the compiler sees one.
func TestCounts(t *testing.T) {
	files := map[string]string{
		"a/x.go":      "// Package a.\npackage a\n\nfunc f() { g(\n\t1) }\n", // package a func f ( ) { g ( 1 ) }
		"a/x_test.go": "package a\n",
		"a/y.go":      "package a\n",
	}
	got, err := Counts([]string{"a/x.go", "a/x_test.go", "a/y.go"}, func(file string) ([]byte, error) {
		return []byte(files[file]), nil
	})
	if want := []Count{{"a", 14, 6}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
	names, err := Exported([]byte("package a\ntype T int\nfunc (T) M() {}\nfunc F() {}\nconst C, d = 1, 2\nvar V = 1\n"))
	if want := []string{"T", "F", "C", "V"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%v %v, want %v", names, err, want)
	}
}
