package run

import (
	"os"
	"strconv"

	"github.com/fairlead-cni/fairlead/cli/attached"
	"golang.org/x/sys/unix"
)

// inode identifies the namespace that path leads to; 0 where it leads to none.
func inode(path string) uint64 {
	var st unix.Stat_t
	if attached.IsNetns(path) != nil || unix.Stat(path, &st) != nil {
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
