package procsys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// procSysNet is what it is for the thread that opens it: the settings of the namespace that the thread is in.
const procSysNet = "/proc/sys/net"

// NetPath returns the path below /proc/sys of a sysctl key, which must begin with net/. IFNAME in the key stands for
// the name of a link, whatever characters the name has. The separators are those of Path.
func NetPath(key, link string) (string, error) {
	path, err := Path(key)
	if err != nil {
		return "", err
	}
	path = strings.Replace(strings.TrimPrefix(path, "/proc/sys/"), "IFNAME", link, 1)
	if dir, _, below := strings.Cut(path, "/"); dir != "net" || !below {
		return "", fmt.Errorf("sysctl %q: is not below net, where a network namespace's own settings are", key)
	}
	return path, nil
}

// A NetFile is an open sysctl of a network namespace. Keep a NetFile open to access a sysctl several times. The
// lookup is slow, because the kernel keeps the files with the same name of all namespaces in one list.
type NetFile struct {
	ReadOnly error // why it cannot be written; nil where it can

	ns   *kernel.NS
	path string
	fd   int
}

// OpenNet opens a sysctl of the namespace by its path below /proc/sys, such as net/core/somaxconn.
func OpenNet(ns *kernel.NS, path string) (*NetFile, error) {
	f := &NetFile{ns: ns, path: path}
	err := ns.Do(func() (err error) {
		f.fd, err = openNet(path, unix.O_RDWR)
		if netlink.Is(err, unix.EROFS, unix.EACCES, unix.EPERM) {
			f.ReadOnly = err
			f.fd, err = openNet(path, unix.O_RDONLY)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read sysctl %s: %w", path, err)
	}
	return f, nil
}

// Value returns the sysctl's value.
func (f *NetFile) Value() (value string, err error) {
	err = f.ns.Do(func() error {
		value, err = readAll(f.fd)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", f.path, err)
	}
	return value, nil
}

// Set writes the sysctl and returns the value as the kernel shows it afterwards.
func (f *NetFile) Set(value string) (is string, err error) {
	err = f.ReadOnly
	if err == nil {
		err = f.ns.Do(func() error {
			// Without the newline an empty value, which empties a list, would not reach the kernel.
			if _, err := unix.Pwrite(f.fd, []byte(value+"\n"), 0); err != nil {
				return err
			}
			is, err = readAll(f.fd)
			return err
		})
	}
	if err != nil {
		return "", fmt.Errorf("write sysctl %s=%s: %w", f.path, value, err)
	}
	return is, nil
}

// Close closes the file.
func (f *NetFile) Close() { unix.Close(f.fd) }

// GetNet returns the value of a sysctl of the namespace. The error readOnly says why the sysctl cannot be written; it
// is nil if the sysctl can be written.
func GetNet(ns *kernel.NS, path string) (value string, readOnly, err error) {
	f, err := OpenNet(ns, path)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	value, err = f.Value()
	return value, f.ReadOnly, err
}

// ListNet returns the paths of all sysctls of the namespace.
func ListNet(ns *kernel.NS) (paths []string, err error) {
	err = ns.Do(func() error {
		return filepath.WalkDir(procSysNet, func(file string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				paths = append(paths, strings.TrimPrefix(file, "/proc/sys/"))
			}
			return nil // what cannot be read is no setting that could be meant
		})
	})
	return paths, err
}

// openNet opens a setting of the namespace that the thread is in. Whatever is in path, the kernel leads
// nowhere but below net.
func openNet(path string, flags int) (int, error) {
	rest, ok := strings.CutPrefix(path, "net/")
	if !ok {
		return -1, unix.EXDEV
	}
	dir, err := unix.Open(procSysNet, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: procSysNet, Err: err}
	}
	defer unix.Close(dir)
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return -1, os.NewSyscallError("fstatfs", err)
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return -1, errors.New(procSysNet + " is not the kernel's")
	}
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat2(dir, rest, &unix.OpenHow{
		Flags:   uint64(flags),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if errors.Is(err, unix.ENOSYS) && !strings.Contains("/"+rest+"/", "/../") { // Linux before 5.6
		return unix.Openat(dir, rest, flags, 0)
	}
	return fd, err
}
