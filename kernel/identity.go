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

// Inode returns the device and inode number of the namespace's nsfs file. They identify the namespace until it ends;
// a later namespace of the same boot may get the same inode.
func (ns *NS) Inode() (dev, ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(ns.FD, &st); err != nil {
		return 0, 0, os.NewSyscallError("fstat", err)
	}
	return st.Dev, st.Ino, nil
}

// Same reports whether two open namespaces are the same namespace. It compares their inodes.
func Same(a, b *NS) (bool, error) {
	if a == nil || b == nil {
		return false, nil
	}
	ad, ai, aerr := a.Inode()
	bd, bi, berr := b.Inode()
	return ad == bd && ai == bi, errors.Join(aerr, berr)
}

// An Identity distinguishes a namespace from a later one that has the same path, or even the same inode.
type Identity struct {
	Dev, Ino, Cookie uint64
}

// Same reports whether two identities may belong to one namespace. Old kernels give no cookie. If either cookie is
// missing, only the inodes are compared.
func (id Identity) Same(as Identity) bool {
	if id.Cookie == 0 || as.Cookie == 0 {
		id.Cookie, as.Cookie = 0, 0
	}
	return id == as
}

// Identity returns the identity of ns.
func (ns *NS) Identity() (id Identity, err error) {
	if id.Dev, id.Ino, err = ns.Inode(); err != nil {
		return id, err
	}
	id.Cookie, err = ns.cookie()
	return id, err
}

// Is reports whether ns is the namespace with the identity was. The cookie is read only if the inodes are equal,
// because reading the cookie needs a socket inside the namespace, which is not permitted everywhere.
func (ns *NS) Is(was Identity) (bool, error) {
	dev, ino, err := ns.Inode()
	if err != nil || dev != was.Dev || ino != was.Ino {
		return false, err
	}
	cookie, err := ns.cookie()
	return err == nil && was.Same(Identity{dev, ino, cookie}), err
}

// Reopen opens the namespace at path if it still has the identity was. It returns nil without an error if that
// namespace is gone.
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
