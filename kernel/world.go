// Package kernel is the door to the kernel's network: open namespaces, links, addresses, routes, sysctls
// and nftables. It knows mechanisms and no policy; what should exist is said by package resource.
package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

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

// A World is what one call can reach: the host's namespace, the container's (nil where there is none),
// and what was remembered of former calls.
type World struct {
	Host      *NS
	Container *NS
	Store     Store
}

// Close closes both namespaces.
func (w *World) Close() {
	w.Host.Close()
	w.Container.Close()
}

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
	conns  map[int]*conn // one a protocol, see conn

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

// Do runs fn on a thread that is inside the namespace, for what follows the thread: opening sockets, and /proc/sys/net.
// The thread is made at the first use and thrown away by Close, and runs nothing else; Stranded says otherwise.
func (ns *NS) Do(fn func() error) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.Path == "" {
		return fn() // every thread of the process is in it
	}
	if ns.Stranded != nil {
		if home := wayBack(); home >= 0 {
			return ns.inNetns(home, fn)
		}
		ns.Stranded = nil
	}
	if ns.work == nil {
		work, entered := make(chan func()), make(chan error)
		onDisposableThread(func() {
			if err := unix.Setns(int(ns.FD), unix.CLONE_NEWNET); err != nil {
				entered <- fmt.Errorf("enter netns %s: %w", ns.Path, err)
				return
			}
			entered <- nil
			for f := range work {
				f()
			}
		})
		if err := <-entered; err != nil {
			return err
		}
		ns.work = work
	}
	done := make(chan error)
	ns.work <- func() { done <- fn() }
	return <-done
}

// wayBack locks the caller's thread and opens the namespace that it is in, or is -1 where it could not come back: where
// that is of another user namespace than the program, which may enter a container's and not this one.
func wayBack() (home int) {
	runtime.LockOSThread()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		if err = unix.Setns(home, unix.CLONE_NEWNET); err == nil {
			return home
		}
		unix.Close(home)
	}
	runtime.UnlockOSThread()
	return -1
}

// inNetns runs fn on the caller's thread, which is at home and locked.
func (ns *NS) inNetns(home int, fn func() error) error {
	defer runtime.UnlockOSThread()
	defer unix.Close(home)
	if err := unix.Setns(int(ns.FD), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter netns %s: %w", ns.Path, err)
	}
	defer func() {
		// What this thread did next would be done to the container instead of the host.
		if err := unix.Setns(home, unix.CLONE_NEWNET); err != nil {
			ns.Stranded(fmt.Errorf("leave netns %s: %w", ns.Path, err))
		}
	}()
	return fn()
}

// onDisposableThread runs fn on a thread that ends with it. The process's first thread never ends: in a daemon it would
// keep the namespace that it was in last, and all that is in there, for good.
func onDisposableThread(fn func()) {
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		if unix.Gettid() != unix.Getpid() {
			fn()
			return
		}
		begun := make(chan struct{})
		go func() {
			runtime.LockOSThread() // on another thread, for the first one is held until here
			close(begun)
			fn()
		}()
		<-begun
		runtime.UnlockOSThread()
	}()
}

// Inode identifies a namespace on this boot: device and inode of its nsfs file.
func (ns *NS) Inode() (dev, ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.FD), &st); err != nil {
		return 0, 0, os.NewSyscallError("fstat", err)
	}
	return st.Dev, st.Ino, nil
}

// Same reports whether two open namespaces are one.
func Same(a, b *NS) (bool, error) {
	if a == nil || b == nil {
		return false, nil
	}
	ad, ai, aerr := a.Inode()
	bd, bi, berr := b.Inode()
	return ad == bd && ai == bi, errors.Join(aerr, berr)
}

// An Identity tells a namespace from one that got its path, or even its inode, later.
type Identity struct {
	Dev, Ino, Cookie uint64
}

// Same reports whether two identities may be of one namespace. One that has no cookie is of an old kernel: then the
// inode has to do.
func (id Identity) Same(as Identity) bool {
	if id.Cookie == 0 || as.Cookie == 0 {
		id.Cookie, as.Cookie = 0, 0
	}
	return id == as
}

// Identity is ns's.
func (ns *NS) Identity() (id Identity, err error) {
	if id.Dev, id.Ino, err = ns.Inode(); err != nil {
		return id, err
	}
	id.Cookie, err = ns.Cookie()
	return id, err
}

// Is reports whether ns is the namespace that had an identity. Its cookie is asked for only where the inode leaves the
// answer open, for one may not look inside of every namespace.
func (ns *NS) Is(was Identity) (bool, error) {
	dev, ino, err := ns.Inode()
	if err != nil || dev != was.Dev || ino != was.Ino {
		return false, err
	}
	cookie, err := ns.Cookie()
	return err == nil && was.Same(Identity{dev, ino, cookie}), err
}

// Reopen opens the namespace at a path if it is still the one that had an identity, and is nil where that is gone.
func Reopen(path string, was Identity) (*NS, error) {
	if path == "" {
		return nil, nil
	}
	ns, err := Open(path)
	if errors.Is(err, ErrNoNamespace) || errors.Is(err, ErrNotNamespace) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if same, err := ns.Is(was); err != nil || !same {
		ns.Close()
		return nil, err
	}
	return ns, nil
}
