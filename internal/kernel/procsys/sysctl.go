// Package procsys reads and writes sysctls below /proc/sys, also those of a network namespace. The packages above it
// decide which sysctls may be set.
package procsys

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Setting is a sysctl and its value.
type Setting struct {
	Key, Value string
	Optional   bool // skipped where the kernel has no such file: no IPv6, or an older kernel
}

// Path returns the path of a key below /proc/sys. As in sysctl(8), the first separator in the key decides whether
// dots or slashes separate. The other character then stands for a dot in a name: net.ipv4.conf.eth0/5.rp_filter. Path
// also accepts net.ipv4.conf.eth0.5.rp_filter, because only a link's name and one file follow conf.
func Path(key string) (string, error) {
	path := key
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '.' {
		f := strings.Split(key, ".")
		if n := len(f); n > 5 && f[0] == "net" && (f[2] == "conf" || f[2] == "neigh") {
			f = append(f[:3:3], strings.Join(f[3:n-1], "/"), f[n-1])
		}
		for i := range f {
			f[i] = strings.ReplaceAll(f[i], "/", ".")
		}
		path = strings.Join(f, "/")
	}
	for _, name := range strings.Split(path, "/") {
		if name == "" || name == "." || name == ".." || strings.ContainsRune(name, 0) {
			return "", fmt.Errorf("sysctl %q: not a key", key)
		}
	}
	return "/proc/sys/" + path, nil
}

// Get returns the value of a key inside the namespace.
func Get(ns *kernel.NS, key string) (value string, err error) {
	path, err := Path(key)
	if err != nil {
		return "", err
	}
	value, err = kernel.Once(ns, path, func() (value string, err error) {
		err = ns.Do(func() error {
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			value, err = readAll(fd)
			return err
		})
		return value, err
	})
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return value, nil
}

// Set writes the settings that differ, in order. If one cannot be written, Set restores those that it has written. A
// setting with the right value needs no write permission, because many nodes have a read-only /proc/sys.
func Set(ns *kernel.NS, settings ...Setting) (changed bool, err error) {
	paths := make([]string, len(settings))
	for i, s := range settings {
		if paths[i], err = Path(s.Key); err != nil {
			return false, err
		}
	}
	err = ns.Do(func() error {
		var undo []func()
		for i, s := range settings {
			old, wrote, err := set(paths[i], s.Value)
			if errors.Is(err, unix.ENOENT) && s.Optional {
				continue
			}
			if err != nil {
				for _, f := range undo {
					f()
				}
				return fmt.Errorf("write sysctl %s=%s: %w", s.Key, s.Value, err)
			}
			if wrote {
				changed = true
				undo = append(undo, func() { _, _, _ = set(paths[i], old) })
			}
		}
		return nil
	})
	return changed && err == nil, err
}

func set(path, value string) (old string, wrote bool, err error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	refused := err
	if netlink.Is(err, unix.EROFS, unix.EACCES, unix.EPERM) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if netlink.Is(err, unix.EACCES, unix.EPERM) { // net/ipv4/route/flush, say
			fd, err = unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
			refused = err
		}
	}
	if err != nil {
		return "", false, err
	}
	defer unix.Close(fd)
	if old, err = readAll(fd); err == nil && SameValue(old, value) {
		return old, false, nil
	}
	if refused != nil {
		return old, false, refused
	}
	_, err = unix.Pwrite(fd, []byte(value), 0) // anywhere else the kernel ignores the write
	return old, err == nil, err
}

// SameValue reports whether two values of a sysctl mean the same. Lists may be separated by any white space.
func SameValue(a, b string) bool {
	return strings.Join(strings.Fields(a), " ") == strings.Join(strings.Fields(b), " ")
}

func readAll(fd int) (string, error) {
	var all []byte
	buf := make([]byte, 512)
	for {
		n, err := unix.Pread(fd, buf, int64(len(all)))
		if err != nil {
			return "", err
		}
		all = append(all, buf[:n]...)
		if n == 0 || bytes.HasSuffix(all, []byte("\n")) {
			return strings.TrimSpace(string(all)), nil
		}
	}
}
