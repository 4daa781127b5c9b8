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

// NewNetns makes a network namespace for a container, its lo up. It lasts until ns is closed, no process is in it, and
// BindNetns has given it no name.
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

// BindNetns keeps a namespace, at a path that nothing had before: ip(8) sees those in /run/netns. It is the Netns of an
// Attachment then, and stays when ns is closed and its processes have ended.
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

// RemoveNetns takes away what BindNetns made, after Del; the namespace ends with its last process. One that is not
// there is no error.
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

// setUp sets a link of the calling thread's namespace up.
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

// onThread runs fn on a thread that is thrown away, with whatever namespaces fn entered.
func onThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- fn()
	}()
	return <-done
}
