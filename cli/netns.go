package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// inode identifies the namespace that path leads to; 0 where it leads to none.
func inode(path string) uint64 {
	var st unix.Stat_t
	if isNetns(path) != nil || unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
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
