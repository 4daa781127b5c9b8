package etcd

import (
	"cmp"
	"context"
	"net/netip"
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

// leased returns the addresses that have leases: the files of the directory have their names. It does not wait for plugins that
// allocate or release some.
func (h *host) leased() (all []netip.Addr, err error) {
	dir, err := h.leaseDir()
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if a, err := netip.ParseAddr(f.Name()); err == nil {
			all = append(all, a)
		}
	}
	return all, nil
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
