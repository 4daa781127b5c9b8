package kernel

import (
	"errors"
	"os"

	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Conn returns the namespace's socket of a netlink protocol. Conn opens the socket on first use and keeps it until
// Close. Closing a NETLINK_NETFILTER socket early is slow: the kernel waits for a grace period while nf_tables has
// something to destroy.
func (ns *NS) Conn(proto int) (*netlink.Conn, error) {
	ns.connMu.Lock()
	defer ns.connMu.Unlock()
	if c := ns.conns[proto]; c != nil {
		return c, nil
	}
	var c *netlink.Conn
	if err := ns.Do(func() (err error) {
		c, err = netlink.Dial(proto)
		return err
	}); err != nil {
		return nil, err
	}
	if ns.conns == nil {
		ns.conns = map[int]*netlink.Conn{}
	}
	ns.conns[proto] = c
	return c, nil
}

// Later has World.Finish call fn, once. It is for a change that the kernel completes while the call goes on.
func (ns *NS) Later(fn func() error) {
	ns.laterMu.Lock()
	defer ns.laterMu.Unlock()
	ns.later = append(ns.later, fn)
}

func (ns *NS) closeConns() {
	ns.connMu.Lock()
	defer ns.connMu.Unlock()
	for _, c := range ns.conns {
		c.Close()
	}
	ns.conns = nil
}

// Unanswered reports whether err means that the kernel could not be asked at all. Such an error is no answer: a
// caller that takes other errors for "not supported" has to try again.
func Unanswered(err error) bool {
	var call *os.SyscallError // of the socket: what the kernel answers to a message is a number alone
	if errors.As(err, &call) && call.Syscall != "ioctl" {
		return true
	}
	return netlink.Is(err, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EINTR, unix.EPERM)
}

// Events opens a socket that receives the events of these groups of a netlink protocol. Room is for how many bytes of
// them there is, before more are lost; 0: the kernel's default.
func (ns *NS) Events(proto, room int, groups ...uint) (*os.File, error) {
	addr := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, g := range groups {
		addr.Groups |= 1 << (g - 1)
	}
	var fd int
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	if room > 0 {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room)
	}
	if err := unix.Bind(fd, addr); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}
