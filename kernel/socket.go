package kernel

import (
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// Conn is the namespace's socket of a protocol, opened at the first use and kept until Close: a
// NETLINK_NETFILTER socket that is closed while nf_tables has something to destroy waits for a grace
// period.
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

// OpenConn is conn of a socket that is open already, else nil.
func (ns *NS) OpenConn(proto int) *netlink.Conn {
	ns.connMu.Lock()
	defer ns.connMu.Unlock()
	return ns.conns[proto]
}

func (ns *NS) closeConns() {
	ns.connMu.Lock()
	defer ns.connMu.Unlock()
	for _, c := range ns.conns {
		c.Close()
	}
	ns.conns = nil
}

// Unanswered reports whether an error says nothing of what the kernel was asked, but only that it could not be asked:
// what does without an answer otherwise is to be tried again.
func Unanswered(err error) bool {
	return netlink.Is(err, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EINTR, unix.EPERM)
}
