package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// netnsDir is where ip(8) keeps the names of network namespaces.
const netnsDir = "/run/netns"

// netnsPath is the path that a NETNS on the command line means: a path is made absolute, a name is one of
// ip(8)'s. A name is allowed to be a file of the working directory too, as cnitool has it.
func netnsPath(arg string) (string, error) {
	if strings.Contains(arg, "/") {
		return filepath.Abs(arg)
	}
	named := filepath.Join(netnsDir, arg)
	if _, err := os.Lstat(named); err != nil {
		if _, err := os.Lstat(arg); err == nil {
			return filepath.Abs(arg)
		}
	}
	return named, nil
}

// isNetns reports whether path leads to a network namespace. The file that a name leaves behind when the
// namespace went without it, or the namespace of another kind, does not.
func isNetns(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open netns", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return fmt.Errorf("open netns %s: not a network namespace: %w", path, fs.ErrNotExist)
	}
	return nil
}

// noteAbsent says of a NETNS that a command goes without, if it is given, that it is not there: add would fail.
func (a *app) noteAbsent(args []string) error {
	if len(args) < 2 {
		return nil
	}
	path, err := netnsPath(args[1])
	if err != nil {
		return err
	}
	if err := isNetns(path); errors.Is(err, fs.ErrNotExist) {
		a.note("warning: %v; `%s` goes without it, and `fairlead add` would fail", err, a.doing)
	}
	return nil
}

// newNetns makes a network namespace, its lo up. It has no name yet: it dies with the descriptor.
func newNetns() (ns *os.File, err error) {
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

// bindNetns gives a namespace a name that ip(8) sees and that nothing had before.
func bindNetns(ns *os.File, path string) error {
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

// inode identifies the namespace that path leads to; 0 where it leads to none.
func inode(path string) uint64 {
	var st unix.Stat_t
	if isNetns(path) != nil || unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// removeNetns takes the name away; the namespace dies with its last process. Absent is removed.
func removeNetns(path string) error {
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

// killInside ends every process in the namespace of that inode, but this one: what a command left running
// there has lost its network, and would keep the namespace. One that was forked meanwhile is found in the
// next round.
func killInside(inode uint64) {
	for range 100 {
		if !endAll(func(pid string) bool {
			var st unix.Stat_t
			return unix.Stat("/proc/"+pid+"/ns/net", &st) == nil && st.Ino == inode
		}) {
			return
		}
	}
}

// endAll kills the processes that match, waits until they are gone, and reports whether there were any.
func endAll(match func(pid string) bool) (any bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && match(e.Name()) {
			any = end(pid, func() bool { return match(e.Name()) }) || any
		}
	}
	return any
}

// end kills a process and waits until it is gone. Its descriptor is opened before it is looked at again:
// so it is not another one that got its number.
func end(pid int, same func() bool) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if !same() || unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) != nil {
		return false
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
		if err != unix.EINTR {
			return true
		}
	}
}
