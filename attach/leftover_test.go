package attach

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/spec"
)

// A crash between writing and renaming leaves one temporary file, where no library looks for
// attachments; the next ADD or DEL of the same attachment takes it away.
func TestLeftover(t *testing.T) {
	r := &Runtime{CacheDir: t.TempDir()}
	c := &Cached{Network: "lan", ContainerID: "web", IfName: "eth0", Result: &spec.Result{CNIVersion: spec.V100}}
	left := func() string {
		path := r.temporary(c.Owner())
		if err := os.WriteFile(path, []byte(`{"kind":"cniCacheV1","containerId":"we`), 0o600); err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(path) == r.resultsDir() {
			t.Errorf("%s lies among the attachments", path)
		}
		return path
	}
	gone := func(path string) {
		t.Helper()
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	path := left()
	if list, problems := r.List(""); len(list)+len(problems) > 0 {
		t.Errorf("list %v, %v", list, problems)
	}
	if err := r.store(c); err != nil {
		t.Fatal(err)
	}
	gone(path)
	if got, err := r.load(c.Owner()); err != nil || got == nil || got.Owner() != c.Owner() {
		t.Errorf("load %v, %v", got, err)
	}
	path = left()
	if err := r.forget(c.Owner(), c); err != nil {
		t.Fatal(err)
	}
	gone(path)
	gone(c.File)
}

// Programs of different releases find the lock of a long name in the same file.
func TestLockName(t *testing.T) {
	short := strings.Repeat("a", 200)
	if got := fileName(short); got != short {
		t.Errorf("got %q", got)
	}
	if got, want := fileName(short+"a"), short+"-a92efd82109373e5"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
