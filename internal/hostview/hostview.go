// Package hostview finds out what this program sees of the host: it may be in a container of its own.
package hostview

import (
	"os"
	"path/filepath"
	"strings"
)

// Unseen reports whether the absence of a file at a namespace's path proves nothing, because this program does not see
// the host's files. This is so if the directory of the path does not exist and this program does not use the host's
// mounts, as in a container. Paths below /proc exist as long as their process does, so for them it counts whether this
// program sees the host's processes. With the host's mounts a missing directory proves as much as a missing file: after
// a boot there is no /run/netns until the first container starts.
func Unseen(netns string) bool {
	if strings.HasPrefix(netns, "/proc/") {
		return ownProcesses("/proc")
	}
	_, err := os.Stat(filepath.Dir(netns))
	return err != nil && !(os.IsNotExist(err) && hostMounts("/proc"))
}

// ownProcesses reports whether this program is process 1 of a container, where the process numbers of the host mean
// nothing.
func ownProcesses(proc string) bool {
	first, err := os.Stat(proc + "/1/exe")
	if err != nil {
		return false
	}
	self, err := os.Stat(proc + "/self/exe")
	return err == nil && os.SameFile(first, self)
}

// hostMounts reports whether this thread uses the mounts of the host: it is in the first mount namespace of the kernel,
// or in that of process 1 of the first PID namespace. It is false if this cannot be determined.
func hostMounts(proc string) bool {
	// include/uapi/linux/nsfs.h; that of mounts is fixed since Linux 6.18.
	const firstMounts, firstPIDs = "mnt:[4026531832]", "pid:[4026531836]"
	if mounts, err := os.Readlink(proc + "/thread-self/ns/mnt"); err != nil || mounts == firstMounts {
		return err == nil
	}
	if pids, err := os.Readlink(proc + "/thread-self/ns/pid"); err != nil || pids != firstPIDs {
		return false
	}
	mine, err := os.Stat(proc + "/thread-self/ns/mnt")
	if err != nil {
		return false
	}
	init, err := os.Stat(proc + "/1/ns/mnt")
	return err == nil && os.SameFile(mine, init)
}
