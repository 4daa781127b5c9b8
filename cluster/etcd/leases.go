package etcd

import (
	"cmp"
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
)

// leaseEvents are what inotify(7) tells of the directory of leases when some come or go.
const leaseEvents = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE

// leaseDir makes the directory of leases, where there is none yet.
func (h *host) leaseDir() (string, error) {
	dir := filepath.Join(cmp.Or(h.leases.DataDir, disk.DefaultDir), h.network)
	return dir, os.MkdirAll(dir, 0o755)
}

// watchLeases sends to changed after leases came or went, until ctx ends.
func (h *host) watchLeases(ctx context.Context, changed chan<- struct{}) error {
	dir, err := h.leaseDir()
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, leaseEvents); err != nil {
		_ = f.Close()
		return &os.PathError{Op: "watch", Path: dir, Err: err}
	}
	context.AfterFunc(ctx, func() { _ = f.Close() })
	go func() {
		for buf := make([]byte, 4096); ; {
			if _, err := f.Read(buf); err != nil {
				return
			}
			notify(changed)
		}
	}()
	return nil
}

// notify sends to a channel, unless it holds a notice that was not taken yet.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
