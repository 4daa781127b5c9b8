// Package kernel opens network namespaces: descriptors with netlink sockets and a thread inside, and a World of them
// that one call can reach. What is done there is in the folders below, one a mechanism: links and routes in rtnl,
// filters in nft. They know no policy; what should exist is said by package resource.
package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var (
	// ErrNoNamespace says that a network namespace is gone, and with it all that was in it.
	ErrNoNamespace = errors.New("network namespace is gone")
	// ErrNotNamespace says that a path leads to something else than a network namespace.
	ErrNotNamespace = errors.New("not a network namespace")
	// ErrHostNamespace says that the container's namespace is the host's own.
	ErrHostNamespace = errors.New("the container's network namespace is the host's own")
)

// An NS is an open network namespace: a descriptor and, from their first use on, netlink sockets and a thread
// inside it. Nobody else's thread ever enters it, unless Stranded is set.
type NS struct {
	Path string // as the caller wrote it; empty is the namespace that the process was started in
	FD   netns.NsHandle
	// Stranded has the caller's thread enter the namespace and leave it again, where it may. That is for a program of one
	// call, where to start another thread, and to hand over to it, is a good part of what a call takes. Where a thread
	// cannot leave, this is called, and has to end the program.
	Stranded func(error)

	connMu sync.Mutex
	conns  map[int]*netlink.Conn // one a protocol, see conn

	overdue atomic.Bool // see Turn

	mu   sync.Mutex
	work chan func() // to the thread inside, started by Do
}

// Open opens the namespace at path; "" is the one that the process is in. A path that leads nowhere is
// ErrNoNamespace, and one that leads to something else than a namespace is ErrNotNamespace.
func Open(path string) (*NS, error) {
	ns := &NS{Path: path}
	p := path
	if p == "" {
		p = "/proc/thread-self/ns/net" // the main thread, which /proc/self shows, may be inside a container
	}
	// Without O_NONBLOCK a FIFO would be waited for.
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	switch {
	case path == "" && err != nil:
		return nil, fmt.Errorf("open the host's network namespace (is /proc mounted?): %w",
			&fs.PathError{Op: "open", Path: p, Err: err})
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOTDIR),
		errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EINVAL):
		return nil, fmt.Errorf("open netns %s: %w", p, ErrNoNamespace)
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EOPNOTSUPP):
		return nil, fmt.Errorf("open netns %s: %w", p, ErrNotNamespace) // a socket, or a device without a driver
	case err != nil:
		return nil, fmt.Errorf("open netns %s: %w", p, err)
	}
	ns.FD = netns.NsHandle(fd)
	if err := network(fd); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open netns %s: %w", p, err)
	}
	return ns, nil
}

// network is nil for a file that is a network namespace. Only nsfs answers; a plain file left at the path, or the
// namespace of another kind, does not. Whether an error is that answer is asked of the file system.
func network(fd int) error {
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err == nil && kind == unix.CLONE_NEWNET {
		return nil
	}
	var st unix.Statfs_t
	if serr := unix.Fstatfs(fd, &st); serr != nil {
		return os.NewSyscallError("fstatfs", serr)
	}
	if err == nil || st.Type != unix.NSFS_MAGIC {
		return ErrNotNamespace
	}
	return os.NewSyscallError("ioctl", err)
}

// Hidden reports whether what Open says of a path is no proof that the namespace is gone: mounts are not all seen in a
// container of the program's own, where there is a file that nothing is mounted on, or not even the directory.
func Hidden(path string, err error) bool {
	return errors.Is(err, ErrNotNamespace) && !strings.HasPrefix(path, "/proc/") || errors.Is(err, ErrNoNamespace) &&
		spec.Unseen(path)
}

// Close closes the descriptor and the sockets and ends the thread. A nil NS is closed already.
func (ns *NS) Close() {
	if ns == nil {
		return
	}
	ns.closeConns()
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.work != nil {
		close(ns.work)
		ns.work = nil
	}
	if ns.FD >= 0 {
		unix.Close(int(ns.FD))
		ns.FD = -1
	}
}
