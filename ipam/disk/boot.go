package disk

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// thisBoot is a number for the time since the kernel started; 0 if the kernel does not say.
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

// clockNow is now, on a clock that nobody sets.
func clockNow() clock {
	return clock(min(uptime()/100_000_000+1, holdBit-1)) // six years
}

// uptime is that clock in nanoseconds.
func uptime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// netnsOf is a number for the path of a namespace, 0 where there is none.
func netnsOf(path string) uint32 {
	if path == "" {
		return 0
	}
	return number("netns", path)
}

// pathState is what can be seen of the namespace at a path. Unknown are one that is there and no namespace, and one
// whose directory is missing: the mounts may be some that this process does not see.
func pathState(netns string) string {
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

// namespaceOf is the path of the namespace that, says the runtime's cache, the owner of a lease lives in: the lease in
// file f, of which the index has e. The entry of an earlier attachment says nothing of the lease, as while the
// container is attached anew: it names another path than the allocator was told or, where that is not known, is older
// than the lease.
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
	b, err := spec.ReadPlain(path, spec.MaxFile)
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
	if netns = entry.Netns; netns == "" && len(entry.Result) > 0 { // libraries before 1.3 record it in the result alone
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
