// Package kernel opens network namespaces. An open namespace (NS) has a descriptor, netlink sockets and a thread
// inside. A World holds the namespaces that one call can reach. The folders below hold one mechanism each, such as
// links and routes (rtnl) and packet filters (nft). These packages know no policy: package resource decides what
// should exist.
package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fairlead-cni/fairlead/internal/hostview"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
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

// An NS is an open network namespace. It has a descriptor. On first use, it also gets netlink sockets and a thread
// inside the namespace. No thread of the caller enters the namespace, unless Stranded is set.
type NS struct {
	Path string // as the caller wrote it; empty is the namespace that the process was started in
	FD   int
	// Stranded, if it is set, has the caller's thread enter the namespace and leave it again. It is for a program of
	// one call, in which starting another thread takes a good part of the time. The function is called if the thread
	// cannot leave the namespace; it must end the program.
	Stranded func(error)

	connMu sync.Mutex
	conns  map[int]*netlink.Conn // one a protocol, see conn

	overdue atomic.Bool // see Turn

	view *view // of OpenView; nil: each question goes to the kernel

	laterMu sync.Mutex
	later   []func() error // see Later

	mu   sync.Mutex
	work chan func() // to the thread inside, started by Do
}

// Open opens the namespace at path. An empty path means the namespace of this process. The error is ErrNoNamespace if
// nothing exists at path, and ErrNotNamespace if path is not a network namespace.
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
	ns.FD = fd
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

// Hidden reports whether the namespace may exist although Open returned err for path. A program in a container of its
// own does not see all mounts of the host. It finds a file without a mount on it, or not even the directory.
func Hidden(path string, err error) bool {
	return errors.Is(err, ErrNotNamespace) && !strings.HasPrefix(path, "/proc/") || errors.Is(err, ErrNoNamespace) &&
		hostview.Unseen(path)
}

// Close closes the descriptor and the sockets, and ends the thread. Close of a nil NS does nothing.
func (ns *NS) Close() {
	if ns == nil || ns.leave() {
		return
	}
	ns.closeInner()
	ns.closeConns()
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.work != nil {
		close(ns.work)
		ns.work = nil
	}
	if ns.FD >= 0 {
		unix.Close(ns.FD)
		ns.FD = -1
	}
}
