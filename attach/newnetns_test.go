package attach_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/nstest"
)

// A new namespace has lo up, is found at the path that it is bound to, and is gone when that is removed. Nothing stays
// open.
func TestNewNetns(t *testing.T) {
	files := func() int {
		t.Helper()
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := files()
	ns, err := attach.NewNetns()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "netns", "new")
	if err := attach.BindNetns(ns, path); err != nil {
		t.Fatal(err)
	}
	if err := attach.BindNetns(ns, path); err == nil {
		t.Error("a path was bound twice")
	}
	if err := ns.Close(); err != nil || files() != before {
		t.Errorf("%v, and %d files are open, %d before", err, files(), before)
	}
	if links := nstest.RunIn(t, path, "ip", "-br", "link"); !strings.Contains(links, "LOOPBACK,UP") || strings.Count(links, "\n") != 1 {
		t.Errorf("it has the links %s", links)
	}
	for range 2 { // what is gone is removed
		if err := attach.RemoveNetns(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("removed: %v", err)
	}
	if err := attach.RemoveNetns(filepath.Dir(filepath.Dir(path))); err == nil {
		t.Error("what is no namespace, and cannot be removed, was removed")
	}
	below := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(below, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if ns, err = attach.NewNetns(); err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := attach.BindNetns(ns, filepath.Join(below, "x")); err == nil {
		t.Error("a namespace was bound below a file")
	}
}
