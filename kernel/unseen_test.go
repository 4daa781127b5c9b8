package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A missing directory proves that a namespace is gone only where the host's own mounts are seen, as after a boot, when
// there is no /run/netns yet.
func TestHidden(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing/c1")
	for path, want := range map[string]bool{missing: true, filepath.Join(dir, "c1"): false, "/proc/none/ns/net": false} {
		_, err := Open(path)
		if got := Hidden(path, err); got != want {
			t.Errorf("%s, with mounts of our own: %t (%v)", path, got, err)
		}
	}
	// The process that made this throw-away host is outside of it, in the host's mounts as far as there are any.
	outside := fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid())
	mounts, err := os.Readlink(outside)
	if first, _ := os.Readlink("/proc/1/ns/mnt"); err != nil || mounts != first && mounts != "mnt:[4026531832]" {
		t.Skipf("not in the mounts of the host: %q, process 1 is in %q, %v", mounts, first, err)
	}
	hidden, entered := true, make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread goes with its mounts
		f, err := os.Open(outside)
		if err == nil {
			defer f.Close()
			if err = unix.Unshare(unix.CLONE_FS); err == nil {
				err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNS)
			}
		}
		if err == nil {
			hidden = Hidden(missing, ErrNoNamespace)
		}
		entered <- err
	}()
	if err := <-entered; err != nil {
		t.Skipf("enter the host's mounts: %v", err)
	}
	if hidden {
		t.Error("with the host's mounts, a missing directory is no proof")
	}
}
