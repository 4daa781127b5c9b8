package sdk

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A plugin runs in this process if its file is this program, or is known to do the same. A file that was replaced is
// looked at again.
func TestOwnFiles(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	own, other := filepath.Join(dir, "own"), filepath.Join(dir, "other")
	if err := os.Symlink(self, own); err != nil {
		t.Fatal(err)
	}
	write := func(mode os.FileMode) {
		if err := os.WriteFile(other, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(0o755)

	alone := &ownFiles{}
	asked := 0
	knows := false
	told := &ownFiles{other: func(path string) bool {
		asked++
		return knows && path == other
	}}
	check := func(f *ownFiles, path string, want bool) {
		t.Helper()
		if got := f.has(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	check(alone, own, true)
	check(alone, other, false)
	check(alone, filepath.Join(dir, "none"), false)
	check(told, own, true)
	if asked > 0 {
		t.Error("this program was asked about")
	}
	check(told, other, false)
	knows = true
	check(told, other, false)
	if asked != 1 {
		t.Errorf("one file was asked about %d times", asked)
	}

	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(other, later, later); err != nil {
		t.Fatal(err)
	}
	check(told, other, true)
	if err := os.Chmod(other, 0o644); err != nil {
		t.Fatal(err)
	}
	check(told, other, false)
}
