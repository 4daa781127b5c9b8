package disk

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/hostview"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// thisBoot returns a number that identifies the boot; 0 if the kernel does not provide one.
func thisBoot() uint32 {
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
	return number("boot", strings.TrimSpace(string(b[:n])))
}

// clockNow returns the current time on a clock that cannot be set.
func clockNow() clock {
	return clock(min(Uptime()/100_000_000+1, holdBit-1)) // six years
}

// Uptime returns the time on that clock in nanoseconds. It goes on while the machine sleeps, and begins anew with each
// boot.
func Uptime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// netnsOf returns a number for the path of a namespace, 0 for an empty path.
func netnsOf(path string) uint32 {
	if path == "" {
		return 0
	}
	return number("netns", path)
}

// pathState returns what is known about the namespace at a path. It is unknown if the file is not a namespace, or if
// its directory is missing, because this process may not see all mounts.
func pathState(netns string) string {
	var fsys unix.Statfs_t
	switch err := unix.Statfs(netns, &fsys); {
	case err == nil && fsys.Type == unix.NSFS_MAGIC:
		return ipam.Alive
	case !errors.Is(err, unix.ENOENT):
		return ipam.Unknown
	}
	if hostview.Unseen(netns) {
		return ipam.Unknown
	}
	return ipam.Gone
}

// namespaceOf returns the path of the namespace in which, according to the runtime's cache, the owner of a lease lives.
// The lease is in file f and has the index entry e. An entry of the cache for an earlier attachment is ignored, as
// while the container is being attached again: it has another path than the allocator was given, or, if that is
// unknown, it is older than the lease.
func namespaceOf(results, network string, e entry, f lease) (netns string, ok bool) {
	containerID, ifName, ok := strings.Cut(f.text, "\r\n")
	if !ok || strings.ContainsRune(f.text, '/') {
		return "", false
	}
	path := filepath.Join(results, network+"-"+containerID+"-"+ifName)
	info, err := os.Stat(path) // before it is read: what replaces it then is newer
	if err != nil {
		return "", false
	}
	b, err := plainfile.Read(path, plainfile.MaxSize)
	if err != nil {
		return "", false
	}
	var entry struct {
		Kind, ContainerID, IfName, NetworkName, Netns string
		Result                                        json.RawMessage
	}
	if json.Unmarshal(b, &entry) != nil || entry.Kind != "cniCacheV1" ||
		entry.NetworkName != network || entry.ContainerID != containerID || entry.IfName != ifName {
		return "", false // names with dashes share a file name
	}
	if netns = entry.Netns; netns == "" { // libraries before 1.3 record it in the result alone
		if result, err := spec.DecodeResult(entry.Result, ""); err == nil {
			netns = result.Sandbox(ifName)
		}
	}
	switch {
	case !filepath.IsAbs(netns):
		return "", false
	case e.netns != 0:
		return netns, e.netns == netnsOf(netns)
	}
	return netns, !info.ModTime().Before(f.written)
}
