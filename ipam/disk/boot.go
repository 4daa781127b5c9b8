package disk

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// thisBoot is a number for the time since the kernel started; 0 if the kernel does not say.
func thisBoot() uint64 {
	fd, err := unix.Open("/proc/sys/kernel/random/boot_id", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var b [64]byte
	n, err := unix.Read(fd, b[:])
	if err != nil || n == 0 {
		return 0
	}
	return number("boot " + strings.TrimSpace(string(b[:n])))
}

// clockNow is now, on a clock that nobody sets.
func clockNow() clock {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 1
	}
	return clock(min(ts.Sec*10+ts.Nsec/100_000_000+1, holdBit-1)) // six years
}

// netnsOf is the device and inode of a namespace, 0 where there is none.
func netnsOf(path string) uint64 {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Dev<<32 | st.Ino&0xffffffff
}

// vanished reports whether the runtime's cache of results says that the owner which a lease names lived
// in a namespace that is gone. It takes nothing less for proof: not the age of a file, for it says when
// the lease was made and not whether its container lives.
func vanished(results, network, text string) bool {
	netns, ok := namespaceOf(results, network, text)
	return ok && stateOf(netns) == ipam.Gone
}

// stateOf is what can be seen of the namespace at a path. Unknown are one that is there and no namespace, and one whose
// directory is missing: the mounts may be some that this process does not see.
func stateOf(netns string) string {
	var fsys unix.Statfs_t
	switch err := unix.Statfs(netns, &fsys); {
	case err == nil && fsys.Type == unix.NSFS_MAGIC:
		return ipam.Alive
	case !errors.Is(err, unix.ENOENT):
		return ipam.Unknown
	}
	if spec.Unseen(netns) {
		return ipam.Unknown
	}
	return ipam.Gone
}

// namespaceOf is the path of the namespace that, says the runtime's cache, the owner of a lease lives in.
func namespaceOf(results, network, text string) (netns string, ok bool) {
	containerID, ifName, ok := strings.Cut(text, "\r\n")
	if !ok || strings.ContainsRune(text, '/') {
		return "", false
	}
	b, err := spec.ReadPlain(filepath.Join(results, network+"-"+containerID+"-"+ifName), spec.MaxFile)
	if err != nil {
		return "", false
	}
	var entry struct{ Kind, ContainerID, IfName, NetworkName, Netns string }
	if json.Unmarshal(b, &entry) != nil || entry.Kind != "cniCacheV1" || !filepath.IsAbs(entry.Netns) ||
		entry.NetworkName != network || entry.ContainerID != containerID || entry.IfName != ifName {
		return "", false // names with dashes share a file name
	}
	return entry.Netns, true
}
