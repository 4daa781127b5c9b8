package calls

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fairlead-cni/fairlead/internal/nstest"
	"golang.org/x/sys/unix"
)

const errNoSpace = unix.ENOSPC

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

func mountSmall(t *testing.T, dir string, size int) {
	t.Helper()
	if err := unix.Mount("small", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}

// start runs this test binary again.
func start(t testing.TB, env string) (wait func() error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stderr = append(os.Environ(), env), os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd.Wait
}

// Watch tells of what is written, and of what a rotation leaves.
func TestWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls.log")
	s := Setting{To: path, Size: minSize}
	ctx, stop := context.WithCancel(nstest.Context(t))
	defer stop()
	const all = 300 // which are several files
	var at Position
	seen := 0
	err := Watch(ctx, path, func() (err error) {
		at, err = Since(path, at, func(Line) { seen++ })
		if seen < all && err == nil {
			err = s.Write(example())
		} else {
			stop()
		}
		return err
	})
	if err != nil || seen != all {
		t.Errorf("%v, %d lines of %d", err, seen, all)
	}
}
