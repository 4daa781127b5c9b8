package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A NetSysctl is a sysctl of the container's network namespace and its wanted value.
type NetSysctl struct {
	At    string // the key's path in the configuration, for errors
	Key   string // as it was written
	Path  string // below /proc/sys: net/core/somaxconn
	Value string
}

// ParseNetSysctl parses a key, in which IFNAME stands for link. At names the configuration key in errors.
func ParseNetSysctl(at, key, value, link string) (NetSysctl, error) {
	s := NetSysctl{At: at + "." + key, Key: key, Value: value}
	path, err := procsys.NetPath(key, link)
	if err != nil {
		return s, spec.Errorf(spec.CodeConfig,
			"%s: %w; want such as net.core.somaxconn or net/ipv4/conf/IFNAME/rp_filter", s.At, err)
	}
	if strings.ContainsAny(value, "\n\r\x00") {
		return s, spec.Errorf(spec.CodeConfig, "%s: %q: want a value of one line", s.At, value)
	}
	s.Path = path
	return s, nil
}

func (s NetSysctl) String() string { return s.Path + "=" + strings.Join(strings.Fields(s.Value), " ") }

// OpenSettings holds the open sysctls of the container, by path.
type OpenSettings map[string]*procsys.NetFile

func (files OpenSettings) Close() {
	for _, f := range files {
		f.Close()
	}
}

// value opens a setting of the container, unless it is open, and reads it.
func (files OpenSettings) value(w *kernel.World, path string) (value string, readOnly, err error) {
	f := files[path]
	if f == nil {
		if f, err = procsys.OpenNet(w.Container, path); err != nil {
			return "", nil, err
		}
		files[path] = f
	}
	value, err = f.Value()
	return value, f.ReadOnly, err
}

// Look returns the current value of the setting. It fails for a setting that the container does not have or shares
// with the host.
func (s NetSysctl) Look(w *kernel.World, files OpenSettings) (value string, err error) {
	bad := func(format string, args ...any) error {
		return spec.Errorf(spec.CodeConfig, "%s: %w", s.At, fmt.Errorf(format, args...))
	}
	if wholeHost(s.Path) {
		return "", bad("the kernel shows it in every network namespace, and it is the whole host's all the same")
	}
	value, readOnly, err := files.value(w, s.Path)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG):
		return "", bad("%s", s.missing(w))
	case errors.Is(err, unix.EISDIR):
		return "", bad("is a directory; name a setting in it")
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP):
		return "", bad("leads out of %s", "/proc/sys/net")
	case errors.Is(err, fs.ErrPermission):
		return "", bad("can only be written, and so neither be verified nor restored")
	case err != nil:
		return "", fmt.Errorf("%s: %w", s.At, err)
	case readOnly == nil || procsys.SameValue(value, s.Value):
		return value, nil
	case errors.Is(readOnly, unix.EROFS):
		return "", fmt.Errorf("%s: write sysctl %s: %w", s.At, s.Path, readOnly)
	}
	return "", bad("%q: the kernel lets a container only read it (it is %q): it is the whole host's", s.Value, value)
}

// wholeHost reports whether a setting belongs to the whole host although a network namespace shows it and some
// kernels let a container write it. Examples are the size of the conntrack table before Linux 5.13, and a switch that
// cannot be turned off again.
func wholeHost(path string) bool {
	return slices.Contains([]string{
		"net/nf_conntrack_max", "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_buckets",
		"net/netfilter/nf_conntrack_expect_max", "net/netfilter/nf_hooks_lwtunnel",
	}, path)
}

// missing returns the error that a setting does not exist, with the reason.
func (s NetSysctl) missing(w *kernel.World) string {
	if _, _, err := procsys.GetNet(w.Host, s.Path); err == nil || errors.Is(err, fs.ErrPermission) {
		return "is the host's; a network namespace has none of its own"
	}
	all, err := procsys.ListNet(w.Container)
	if err != nil {
		return "no such sysctl"
	}
	near, ok := spelling.Nearest(s.Path, all)
	if !ok {
		return "no such sysctl"
	}
	if i := strings.IndexAny(s.Key, "./"); i >= 0 && s.Key[i] == '.' { // as it was written
		near = strings.Map(func(r rune) rune {
			switch r {
			case '.':
				return '/'
			case '/':
				return '.'
			}
			return r
		}, near)
	}
	return fmt.Sprintf("no such sysctl, did you mean %q?", near)
}

// Set writes the open setting. Some settings are shown in a container but belong to the host. If the host's value
// changes with the container's, Set restores both and fails. Host is nil if the container uses the host's namespace.
func (s NetSysctl) Set(cont *procsys.NetFile, host *kernel.NS, was string) (is string, err error) {
	before := ""
	var shared *procsys.NetFile // the host's; nil: it has none
	if host != nil {
		if f, err := procsys.OpenNet(host, s.Path); err == nil {
			defer f.Close()
			if before, err = f.Value(); err == nil {
				shared = f
			}
		}
	}
	is, err = cont.Set(s.Value)
	switch {
	// the last: no logger of that name
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.ENOENT):
		return "", spec.Errorf(spec.CodeConfig, "%s: %q: the kernel does not take this value (it was %q): %w", s.At,
			s.Value, was, err)
	case err != nil:
		return "", fmt.Errorf("%s: %w", s.At, err)
	case shared == nil || procsys.SameValue(was, is):
		return is, nil
	}
	after, herr := shared.Value()
	if herr != nil || procsys.SameValue(before, after) || !procsys.SameValue(after, is) {
		return is, nil
	}
	_, err = shared.Set(before)
	return "", errors.Join(spec.Errorf(spec.CodeConfig,
		"%s: it is the whole host's, though it is shown in the container", s.At), err)
}
