package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// NewNetns makes a network namespace for a container, with lo up. The namespace exists as long as ns is open, a process
// is in it, or BindNetns has given it a path.
func NewNetns() (ns *os.File, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare network namespace", err)
		}
		if err := setUp("lo"); err != nil {
			return fmt.Errorf("set lo up: %w", err)
		}
		ns, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		return err
	})
	return ns, err
}

// BindNetns mounts a namespace at a path that does not exist yet. ip(8) lists those in /run/netns. The path can be the
// Netns of an Attachment, and keeps the namespace after ns is closed and its processes have ended.
func BindNetns(ns *os.File, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), path, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(&fs.PathError{Op: "bind network namespace to", Path: path, Err: err}, os.Remove(path))
	}
	return nil
}

// RemoveNetns removes what BindNetns made; call it after Del. The namespace ends with its last process. A path that
// does not exist is not an error.
func RemoveNetns(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return &fs.PathError{Op: "unmount netns", Path: path, Err: err}
	}
	// Unlinking also detaches the copies of the mount that other mount namespaces have.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// setUp sets a link in the namespace of the calling thread up.
func setUp(link string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(link)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return os.NewSyscallError("ioctl SIOCSIFFLAGS", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr))
}

// onThread runs fn on a new thread, which ends afterwards with the namespaces that fn entered.
func onThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- fn()
	}()
	return <-done
}
