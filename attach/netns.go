package attach

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// errNoNamespace: the path exists, and is no namespace: its mount is gone.
var errNoNamespace = errors.New("not a namespace")

// identity tells one namespace of one boot from all others: boot, device and inode. Inodes are used
// again, so equal identities prove little, and different ones prove that these are two namespaces.
func identity(path string) (string, error) {
	var fs syscall.Statfs_t
	var st syscall.Stat_t
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := errors.Join(syscall.Fstatfs(int(f.Fd()), &fs), syscall.Fstat(int(f.Fd()), &st)); err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	const nsfs = 0x6e736673
	if int64(fs.Type) != nsfs {
		return "", fmt.Errorf("%s: %w", path, errNoNamespace)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/%d:%d", strings.TrimSpace(string(boot)), st.Dev, st.Ino), nil
}

// netnsForDel is what DEL tells the plugins: path, or nothing where path is the runtime's own namespace,
// or another one than ADD saw, or none any more. A namespace path such as /proc/PID/ns/net outlives its
// process and comes back as somebody else's; a plugin that believed it would take his interfaces, or the
// host's, down. A plugin that gets no namespace takes the container's for vanished (clause P12).
func (r *Runtime) netnsForDel(path, seen string) string {
	if path == "" {
		return ""
	}
	now, err := identity(path)
	switch {
	case errors.Is(err, errNoNamespace):
		return ""
	case err != nil:
		return path
	case seen != "" && seen != now:
		return ""
	}
	if own, err := identity("/proc/self/ns/net"); err == nil && own == now && !r.override() {
		return ""
	}
	return path
}

// override tells whether the reference's variable for plugins that may work in the host's own namespace
// is set.
func (r *Runtime) override() bool {
	var value string
	for _, e := range r.environ() {
		if v, ok := strings.CutPrefix(e, "CNI_NETNS_OVERRIDE="); ok {
			value = v
		}
	}
	return value == "1" || strings.EqualFold(value, "true")
}
