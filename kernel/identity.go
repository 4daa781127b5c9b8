package kernel

import (
	"errors"
	"fmt"
	"os"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// cookie is a number that no other namespace of this boot gets, or 0 where the kernel is older than 5.14
// and does not tell. To ask takes a socket inside, which may fail: that is an error, and no answer.
func (ns *NS) cookie() (cookie uint64, err error) {
	const soNetnsCookie = 71 // SO_NETNS_COOKIE
	c, err := ns.Conn(unix.NETLINK_ROUTE)
	if err == nil {
		cookie, err = unix.GetsockoptUint64(c.FD, unix.SOL_SOCKET, soNetnsCookie)
	}
	if netlink.Is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("ask which network namespace %s is: %w", ns.Path, err)
	}
	return cookie, nil
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
	id.Cookie, err = ns.cookie()
	return id, err
}

// Is reports whether ns is the namespace that had an identity. Its cookie is asked for only where the inode leaves the
// answer open, for one may not look inside of every namespace.
func (ns *NS) Is(was Identity) (bool, error) {
	dev, ino, err := ns.Inode()
	if err != nil || dev != was.Dev || ino != was.Ino {
		return false, err
	}
	cookie, err := ns.cookie()
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
