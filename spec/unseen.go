package spec

import (
	"os"
	"path/filepath"
	"strings"
)

// Unseen reports whether it proves nothing that there is no file at a namespace's path: not even its directory is
// there, as in a container without the host's mounts. What is below /proc is there as long as its process is, if the
// host's processes are seen at all. With the mounts of the host itself a missing directory is as good as a missing
// file: after a boot there is no /run/netns until the first container.
func Unseen(netns string) bool {
	if strings.HasPrefix(netns, "/proc/") {
		return ownProcesses()
	}
	_, err := os.Stat(filepath.Dir(netns))
	return err != nil && !(os.IsNotExist(err) && hostMounts())
}

// ownProcesses reports whether this program is in a container of its own, where it is also process 1: the numbers of
// the host's processes mean nothing there, or others.
func ownProcesses() bool {
	first, err := os.Stat("/proc/1/exe")
	if err != nil {
		return false
	}
	self, err := os.Stat("/proc/self/exe")
	return err == nil && os.SameFile(first, self)
}

// hostMounts reports whether this thread sees the mounts of the host: it is in the mount namespace that the kernel
// began with, or in that of process 1 of the first PID namespace. Where that cannot be told it is false.
func hostMounts() bool {
	// include/uapi/linux/nsfs.h; that of mounts is fixed since Linux 6.18.
	const firstMounts, firstPIDs = "mnt:[4026531832]", "pid:[4026531836]"
	if mounts, err := os.Readlink("/proc/thread-self/ns/mnt"); err != nil || mounts == firstMounts {
		return err == nil
	}
	if pids, err := os.Readlink("/proc/thread-self/ns/pid"); err != nil || pids != firstPIDs {
		return false
	}
	mine, err := os.Stat("/proc/thread-self/ns/mnt")
	if err != nil {
		return false
	}
	init, err := os.Stat("/proc/1/ns/mnt")
	return err == nil && os.SameFile(mine, init)
}
