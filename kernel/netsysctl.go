package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// procSysNet is what it is for the thread that opens it: the settings of the namespace that the thread is in.
const procSysNet = "/proc/sys/net"

// NetSysctlPath is the path of a key below /proc/sys, which has to begin with net/. IFNAME stands for a link's
// name, whatever is in it. The separators are SysctlPath's.
func NetSysctlPath(key, link string) (string, error) {
	path, err := SysctlPath(key)
	if err != nil {
		return "", err
	}
	path = strings.Replace(strings.TrimPrefix(path, "/proc/sys/"), "IFNAME", link, 1)
	if dir, _, below := strings.Cut(path, "/"); dir != "net" || !below {
		return "", fmt.Errorf("sysctl %q: is not below net, where a network namespace's own settings are", key)
	}
	return path, nil
}

// NetSysctl is the value of a setting of the namespace, by its path (net/core/somaxconn). ReadOnly is why it
// cannot be written, and nil where it can.
func (ns *NS) NetSysctl(path string) (value string, readOnly, err error) {
	err = ns.Do(func() error {
		fd, err := openNetSysctl(path, unix.O_RDWR)
		if is(err, unix.EROFS, unix.EACCES, unix.EPERM) {
			readOnly = err
			fd, err = openNetSysctl(path, unix.O_RDONLY)
		}
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		value, err = readAll(fd)
		return err
	})
	if err != nil {
		return "", nil, fmt.Errorf("read sysctl %s: %w", path, err)
	}
	return value, readOnly, nil
}

// SetNetSysctl writes a setting of the namespace and returns what the kernel made of the value.
func (ns *NS) SetNetSysctl(path, value string) (is string, err error) {
	err = ns.Do(func() error {
		fd, err := openNetSysctl(path, unix.O_RDWR)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// Without the newline an empty value, which empties a list, would not reach the kernel.
		if _, err := unix.Pwrite(fd, []byte(value+"\n"), 0); err != nil {
			return err
		}
		is, err = readAll(fd)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("write sysctl %s=%s: %w", path, value, err)
	}
	return is, nil
}

// NetSysctls are the paths of all settings of the namespace.
func (ns *NS) NetSysctls() (paths []string, err error) {
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

// openNetSysctl opens a setting of the namespace that the thread is in. Whatever is in path, the kernel leads
// nowhere but below net.
func openNetSysctl(path string, flags int) (int, error) {
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
