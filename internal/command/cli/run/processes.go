package run

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// killInside ends every other process in that namespace, because it has no network any more and keeps the namespace
// alive. It repeats until it finds none, because a process may fork meanwhile.
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

// endAll kills the processes that match, waits for their end, and reports whether there were any.
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

// end kills a process and waits for its end. It opens a pidfd and then checks the process again, so that it never
// kills another process with the same PID.
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
