package rtnl

import (
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// NSID returns the number that ns has for another namespace. It returns -1 if there is none yet.
func NSID(ns *kernel.NS, other *kernel.NS) (int, error) {
	msgs, err := askNSID(ns, func(b *netlink.Buffer) { b.Host32(unix.NETNSA_FD, uint32(other.FD)) })
	if err != nil || len(msgs) == 0 {
		return -1, err
	}
	return nsidIn(msgs[0], unix.NETNSA_NSID), nil
}

// NSIDFor returns the number that other has for the namespace that ns calls id. It returns -1 if there is none yet,
// or if the kernel cannot tell (before Linux 5.0).
func NSIDFor(ns *kernel.NS, other *kernel.NS, id int) (int, error) {
	target, err := NSID(ns, other)
	if err != nil || target < 0 || id < 0 {
		return -1, err
	}
	msgs, err := askNSID(ns, func(b *netlink.Buffer) {
		b.Host32(unix.NETNSA_NSID, uint32(id))
		b.Host32(unix.NETNSA_TARGET_NSID, uint32(target))
	})
	if err != nil || len(msgs) == 0 {
		return -1, err
	}
	if nsidIn(msgs[0], unix.NETNSA_CURRENT_NSID) < 0 {
		return -1, nil // an older kernel answers with the number that it was asked about
	}
	return nsidIn(msgs[0], unix.NETNSA_NSID), nil
}

// askNSID asks for the number of the namespace that the attributes select.
func askNSID(ns *kernel.NS, of func(*netlink.Buffer)) ([][]byte, error) {
	req := newRequest(unix.RTM_GETNSID, 0, [4]byte{})
	of(&req.Buffer)
	return Call(ns, req, unix.RTM_NEWNSID)
}

// nsidIn returns the number in a message, or -1.
func nsidIn(msg []byte, attr uint16) int {
	v := netlink.Attr(msg[min(4, len(msg)):], attr)
	if v == nil {
		return -1
	}
	return int(int32(netlink.U32(v)))
}

// NSIDs returns the numbers that ns has for other namespaces, of those that still exist.
func NSIDs(ns *kernel.NS) (ids []int, err error) {
	msgs, err := Dump(ns, newRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP, [4]byte{}), unix.RTM_NEWNSID)
	for _, m := range msgs {
		if id := nsidIn(m, unix.NETNSA_NSID); id >= 0 {
			ids = append(ids, id)
		}
	}
	return ids, netlink.About(err, "list numbers of namespaces")
}

// AssignNSID returns the number that ns has for another namespace, and assigns one if there is none. WatchNamespaces
// identifies namespaces by it. The number does not keep the other namespace alive.
func AssignNSID(ns *kernel.NS, other *kernel.NS) (int, error) {
	for range 2 {
		if id, err := NSID(ns, other); err != nil || id >= 0 {
			return id, err
		}
		req := newRequest(unix.RTM_NEWNSID, unix.NLM_F_ACK, [4]byte{})
		req.Host32(unix.NETNSA_FD, uint32(other.FD))
		req.Host32(unix.NETNSA_NSID, 0xffffffff)
		if err := netlink.Except(Tell(ns, req), unix.EEXIST); err != nil {
			return -1, netlink.About(err, "number a namespace")
		}
	}
	return -1, errors.New("number a namespace: the kernel gives none")
}
