package install

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"golang.org/x/sys/unix"
)

// A network's file is written, replaced by a later one, and removed, unless somebody has changed it since.
func TestNetFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	path := filepath.Join(dir, "10-lan.conflist")
	record := filepath.Join(dir, ".10-lan.conflist.installed")
	open := func(doc string) *NetFile {
		t.Helper()
		n, err := OpenNetFile(path, []byte(doc))
		must(t, err)
		return n
	}
	has := func(what, path, text string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if text == "" && !errors.Is(err, fs.ErrNotExist) || text != "" && (err != nil || string(b) != text) {
			t.Errorf("%s: %s is %q, %v, want %q", what, path, b, err, text)
		}
	}
	write := func(what, doc string, wantChanged bool) {
		t.Helper()
		changed, err := open(doc).Write()
		if err != nil || changed != wantChanged || !open(doc).Same || open(doc).Foreign() != nil {
			t.Errorf("%s: changed %v, %v", what, changed, err)
		}
		has(what, path, doc)
		has(what, record, doc)
	}
	foreign := func(what string, err error) {
		t.Helper()
		if f := (*ForeignError)(nil); !errors.As(err, &f) || f.Path != path {
			t.Errorf("%s: %v", what, err)
		}
	}

	if n, err := WrittenNetFile(path); n != nil || err != nil || open("a").Same {
		t.Errorf("of no file: %+v, %v", n, err)
	}
	if removed, err := open("a").Remove(); removed || err != nil {
		t.Errorf("of no file: removed %v, %v", removed, err)
	}
	write("first", "a", true)
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o644 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	write("again", "a", false)
	write("another", "b", true)
	must(t, os.Remove(record))
	write("without its record", "b", false)
	if n, err := WrittenNetFile(path); err != nil || !n.Same || string(n.doc) != "b" {
		t.Errorf("what was written: %+v, %v", n, err)
	}

	must(t, os.WriteFile(path, []byte("theirs"), 0o600))
	n := open("c")
	foreign("changed since", n.Foreign())
	changed, err := n.Write()
	foreign("changed since", err)
	removed, err := n.Remove()
	foreign("changed since", err)
	if changed || removed {
		t.Errorf("written %v, removed %v", changed, removed)
	}
	has("changed since", path, "theirs")
	if n, err := WrittenNetFile(path); err != nil || n.Same {
		t.Errorf("changed since: %+v, %v", n, err)
	}

	must(t, os.Remove(path))
	write("removed by somebody", "c", true)
	if removed, err := open("c").Remove(); !removed || err != nil {
		t.Errorf("removed %v, %v", removed, err)
	}
	has("removed", path, "")
	has("removed", record, "")
}

// What stands in the place of a file, or of its directory, is named, and stays.
func TestNetFileObstacles(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	must(t, errors.Join(unix.Mkfifo(pipe, 0o600), os.WriteFile(file, nil, 0o600)))
	if _, err := OpenNetFile(pipe, nil); !errors.Is(err, plainfile.ErrNotPlain) {
		t.Errorf("a pipe: %v", err)
	}
	if err := replaceFile(pipe, nil); err == nil {
		t.Error("a pipe was replaced")
	}
	must(t, os.Mkdir(filepath.Join(dir, ".file.installed"), 0o700))
	if _, err := WrittenNetFile(file); !errors.Is(err, plainfile.ErrNotPlain) {
		t.Errorf("a directory in place of the record: %v", err)
	}
	below, err := OpenNetFile(filepath.Join(file, "x"), []byte("a"))
	must(t, err)
	if changed, err := below.Write(); changed || !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: changed %v, %v", changed, err)
	}
	if err := replaceFile(filepath.Join(dir, "none", "x"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no directory: %v", err)
	}

	link, full := filepath.Join(dir, "link"), filepath.Join(dir, "full")
	must(t, errors.Join(os.Symlink("file", link), os.MkdirAll(filepath.Join(full, "x"), 0o700)))
	must(t, replaceFile(link, []byte("a")))
	if st, err := os.Lstat(link); err != nil || !st.Mode().IsRegular() {
		t.Errorf("a symbolic link: %v, %v", st, err)
	}
	if err := replaceFile(full, nil); err == nil {
		t.Error("a directory was replaced")
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".fairlead-*")); len(left) > 0 || err != nil {
		t.Errorf("left: %q, %v", left, err)
	}
}
