package spec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// confDir writes files, given as name and content in turn, into a directory.
func confDir(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		file := filepath.Join(dir, files[i])
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(files[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func list(name string, types ...string) string {
	var plugins []string
	for _, typ := range types {
		plugins = append(plugins, fmt.Sprintf(`{"type": %q}`, typ))
	}
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [%s]}`, name, strings.Join(plugins, ", "))
}

func single(name, typ string) string {
	return fmt.Sprintf(`{"cniVersion": "0.4.0", "name": %q, "type": %q}`, name, typ)
}

// loadedLists are the lists of a directory as "name=type,type", and all complaints without the directory.
func loadedLists(dir string) (names, warnings, problems []string) {
	relative := func(err error) string { return strings.ReplaceAll(err.Error(), dir+"/", "") }
	lists, errs := LoadDir(dir)
	for _, l := range lists {
		var types []string
		for _, p := range l.Plugins {
			types = append(types, p.Type)
		}
		names = append(names, l.Name+"="+strings.Join(types, ","))
		for _, w := range l.Warnings {
			warnings = append(warnings, relative(w))
		}
	}
	for _, err := range errs {
		var f *FileError
		if !errors.As(err, &f) || f.File == "" {
			problems = append(problems, fmt.Sprintf("%T", err))
		}
		problems = append(problems, relative(err))
	}
	return names, warnings, problems
}

func sameLines(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\ngot  %s\nwant %s", what, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// clause: C1 C5 C8 C9 C10
func TestLoadDir(t *testing.T) {
	for _, tc := range []struct {
		name                      string
		files                     []string
		lists, warnings, problems []string
	}{
		{"order", []string{"20.conflist", list("b", "x"), "10.json", single("d", "x"), "10.conf", single("c", "x"),
			"10.conflist", list("a", "x"), ".0.conflist", list("dot", "x")},
			[]string{"dot=x", "a=x", "b=x", "c=x", "d=x"}, nil, nil},
		{"other files", []string{"a.CONF", "?", "a.conf~", "?", "a.conflist.bak", "?", "README", "?", "sub/a.conflist", "?",
			"x.conf/y", "?"},
			nil, nil, nil},
		{"a bad one hides no good one", []string{"10.conflist", "{", "15.conflist", "", "20.conflist", list("b", "x"),
			"30.conf", "[]", "40.conf", single("c", "../x")},
			[]string{"b=x"}, nil, []string{
				"10.conflist:1:2: the text ends inside the object that begins at line 1, column 1",
				"15.conflist:1:1: there is no JSON here, the text is empty",
				"30.conf:1:1: the configuration is an array: it has to be an object",
				`40.conf:1:46: type: type "../x" is not a plain file name`}},
		{"the first of a name", []string{"20.conflist", list("n", "second"), "10.conflist", list("n", "first"), "05.conf",
			single("n", "third")},
			[]string{"n=first"}, []string{
				`20.conflist: defines network "n" once more and is not used; 10.conflist wins: it comes first by name`,
				`05.conf: defines network "n" once more and is not used; 10.conflist wins: lists go before single configurations`}, nil},
		{"a bad file of the name", []string{"10.conflist", `{"name": "n", "plugins": [{}]}`, "20.conflist", list("n", "x")},
			[]string{"n=x"}, []string{`10.conflist:1:27: also defines network "n" and cannot be used; 20.conflist is`},
			[]string{"10.conflist:1:27: plugins[0].type: is missing: it names the plugin"}},
		{"mixed up", []string{"a.conf", list("a", "x"), "b.conflist", single("b", "x"), "c.json", list("c", "x")},
			nil, nil, []string{
				"b.conflist:1:38: type: this is a single configuration: its file is named *.conf, or it goes into plugins: […]",
				"a.conf:1:38: plugins: this is a list: a file with a list is named *.conflist",
				"c.json:1:38: plugins: this is a list: a file with a list is named *.conflist"}},
		{"single of 1.0.0", []string{"a.conf", `{"cniVersion": "1.0.0", "name": "a", "type": "x"}`},
			[]string{"a=x"}, []string{`a.conf:1:2: cniVersion: from 1.0.0 on there are only lists: put the plugin into {"cniVersion": …, "name": …, "plugins": [{"type": …}]}`}, nil},
		{"no type", []string{"a.conf", `{"name": "a"}`, "b.conflist", `{"name": "b"}`},
			nil, nil, []string{"b.conflist:1:1: plugins: is missing: none stand here, and b has none",
				"a.conf:1:1: type: is missing: it names the plugin"}},
		{"drop-in folder", []string{"a.conflist", list("n", "x", "y"), "n/20.conf", `{"type": "second"}`, "n/10.conf", `{"type": "first", "runtimeConfig": {}, "args": {"podman_options": {"isolate": "1"}}}`, "n/30.json", "?", "n/40.conflist", "?", "n/50.conf/z", "?"},
			[]string{"n=x,y,first,second"}, []string{"n/10.conf:1:19: runtimeConfig: is for the runtime to set, not for a file: what the runtime says wins"}, nil},
		{"only a drop-in folder", []string{"a.conflist", `{"name": "n"}`, "n/10.conf", `{"type": "first"}`},
			[]string{"n=first"}, nil, nil},
		{"drop-in folder, not asked for", []string{"a.conflist", `{"name": "n", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "x"}]}`, "n/10.conf", "?"},
			[]string{"n=x"}, nil, nil},
		{"a bad drop-in fails its network", []string{"a.conflist", list("n", "x"), "n/10.conf", "{\n\"type\": 5}",
			"b.conflist", list("b", "y")},
			[]string{"b=y"}, nil, []string{"n/10.conf:2:9: type: is the number 5, and has to be a string"}},
		{"no drop-ins for a single one", []string{"a.conf", single("n", "x"), "n/10.conf", "?"},
			[]string{"n=x"}, nil, nil},
		{"a file where the folder would be", []string{"a.conflist", list("n", "x"), "n", "?"},
			[]string{"n=x"}, nil, nil},
		{"a name that is a path is not followed", []string{"net/a.conflist", "?", "a.conflist", `{"name": "../n", "plugins": [{"type": "x"}]}`},
			nil, nil, []string{`a.conflist:1:10: name: name "../n" begins with '.': a letter or a digit has to come first`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			names, warnings, problems := loadedLists(confDir(t, tc.files...))
			sameLines(t, "lists", names, tc.lists)
			sameLines(t, "warnings", warnings, tc.warnings)
			sameLines(t, "problems", problems, tc.problems)
		})
	}
}

func TestLoadDirOddities(t *testing.T) {
	if lists, problems := LoadDir(filepath.Join(t.TempDir(), "none")); lists != nil || problems != nil {
		t.Errorf("%v, %v: a directory that is not there has no networks", lists, problems)
	}
	dir := confDir(t, "elsewhere/a", list("n", "x"))
	for link, target := range map[string]string{"a.conflist": "elsewhere/a", "b.conflist": "nowhere",
		"c.conflist": "elsewhere"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	names, _, problems := loadedLists(dir)
	sameLines(t, "lists", names, []string{"n=x"})
	sameLines(t, "problems", problems, []string{"b.conflist: stat: no such file or directory",
		"c.conflist: read: it is no plain file but a directory"})
}

// clause: C1 C10
func TestLoad(t *testing.T) {
	dir := confDir(t, "10.conflist", list("dbnet", "x"), "20.conf", single("wan", "y"), "30.conflist", "{", "40.conflist", `{"name": "broken", "plugins": []}`)
	l, err := Load(dir, "wan")
	if err != nil || l.Name != "wan" || l.File != filepath.Join(dir, "20.conf") {
		t.Fatalf("%+v, %v", l, err)
	}
	if len(l.Warnings) != 0 {
		t.Errorf("warnings %v: the two bad files are others'", l.Warnings)
	}

	_, err = Load(dir, "dbnat")
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	for _, want := range []string{`network "dbnat" from ` + dir, `did you mean "dbnet"?`, "there is dbnet, wan; 2 files cannot be used: 30.conflist, 40.conflist"} {
		wantError(t, err, want)
	}

	_, err = Load(dir, "broken")
	var f *FileError
	if errors.Is(err, ErrNotFound) || !errors.As(err, &f) || f.File != filepath.Join(dir, "40.conflist") || f.Line != 1 ||
		f.Column != 31 {
		t.Errorf("%v", err)
	}

	// One file, or one that has its name, is likely to be meant; and the name of one that ends too early may be known.
	_, err = Load(confDir(t, "10.conflist", list("a", "x"), "20.conflist", "{"), "b")
	wantError(t, err, "there is a; cannot be used: ")
	wantError(t, err, "20.conflist:1:2: the text ends")
	torn := confDir(t, "10-a.conflist", `{`, "20.conflist", `{"plugins": [{"type": "x", "name": "no"}], "name": "torn"`)
	_, err = Load(torn, "a")
	wantError(t, err, "10-a.conflist:1:2: the text ends")
	_, err = Load(torn, "torn")
	if errors.Is(err, ErrNotFound) || !errors.As(err, &f) || f.File != filepath.Join(torn, "20.conflist") {
		t.Errorf("%v", err)
	}

	for name, want := range map[string]string{"": "name is empty", "../x": "begins with '.'",
		"a/b": "has the character '/'"} {
		_, err := Load(dir, name)
		wantError(t, err, want)
	}
	_, err = Load(filepath.Join(dir, "none"), "n")
	wantError(t, err, "the directory does not exist")
	_, err = Load(confDir(t, "README", ""), "n")
	wantError(t, err, "no file there ends in .conflist, .conf or .json")
}

// A file of any name is a list or a single configuration, as its text says. Its ending decides if it has one.
//
// clause: C5 C8
func TestLoadFile(t *testing.T) {
	dir := confDir(t, "a", list("l", "x"), "l/10.conf", `{"type": "y"}`, "b", single("s", "x"), "s/10.conf", `{"type": "y"}`,
		"c", `{`, "d", `{"name": "n", "plugins": []}`, "e.conf", list("l", "x"))
	for file, want := range map[string]int{"a": 2, "b": 1, "c": 0, "d": 0} {
		l, err := LoadFile(filepath.Join(dir, file))
		var f *FileError
		switch {
		case want == 0 && (!errors.As(err, &f) || f.File != filepath.Join(dir, file)):
			t.Errorf("%s: %v", file, err)
		case want > 0 && (err != nil || len(l.Plugins) != want):
			t.Errorf("%s: %+v, %v", file, l, err)
		}
	}
	for _, tc := range []struct{ file, text, bad string }{
		{"a", list("l", "x"), ""}, {"a", single("s", "x"), ""}, {"a.conflist", list("l", "x"), ""}, {"a.conf", single("s", "x"), ""},
		{"a.json", single("s", "x"), ""},
		{"a.conflist", single("s", "x"), "this is a single configuration"},
		{"a.conf", list("l", "x"), "this is a list"}, {"a.json", list("l", "x"), "this is a list"},
		{"a", "{", "the text ends"}, {"a", `{"cniVersion": 5, "type": "x", "name": "n"}`, "cniVersion: is the number 5"},
	} {
		l, err := ParseFile(tc.file, []byte(tc.text))
		wantError(t, err, tc.bad)
		if (l == nil) != (err != nil) || l != nil && l.File != tc.file {
			t.Errorf("%s of %s: %+v, %v", tc.file, tc.text, l, err)
		}
	}
}

// A directory that cannot be read is no empty one. It is a loop here, which nobody can read.
func TestLoadUnreadable(t *testing.T) {
	dir := confDir(t, "10.conflist", list("n", "x"), "20.conflist", list("m", "x"), "m/none", "")
	for link, target := range map[string]string{"loop": "loop", "n": "n", "m/10.conf": "10.conf"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	loop := filepath.Join(dir, "loop")
	lists, problems := LoadDir(loop)
	if len(lists) > 0 || len(problems) != 1 {
		t.Errorf("%v, %v", lists, problems)
	}
	_, err := Load(loop, "n")
	for _, err := range append(problems, err) {
		if wantError(t, err, "too many levels of symbolic links"); errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	}
	for _, name := range []string{"n", "m"} { // whose drop-ins are not known
		_, err := Load(dir, name)
		wantError(t, err, "too many levels of symbolic links")
	}
}

// A network has the drop-ins of its directory, unless its file refuses them.
func TestDropIns(t *testing.T) {
	const closed = `{"name": "closed", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "x"}]}`
	dir := confDir(t, "10.conflist", list("open", "x"), "open/10.conf", `{"type": "y"}`, "20.conflist", closed,
		"closed/10.conf", `{"type": "y"}`)
	for name, want := range map[string][]string{"open": {filepath.Join(dir, "open/10.conf")}, "closed": nil} {
		l, err := Load(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.DropIns(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
