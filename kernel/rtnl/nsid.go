package rtnl

import (
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// NSID returns the number that ns has for another namespace. It returns -1 if there is none yet.
func NSID(ns *kernel.NS, other *kernel.NS) (int, error) {
	req := newRequest(unix.RTM_GETNSID, 0, [4]byte{})
	req.Host32(unix.NETNSA_FD, uint32(other.FD))
	msgs, err := Call(ns, req, unix.RTM_NEWNSID)
	id := -1
	if err == nil && len(msgs) > 0 {
		netlink.EachAttr(msgs[0][min(4, len(msgs[0])):], func(kind uint16, v []byte) {
			if kind == unix.NETNSA_NSID {
				id = int(int32(netlink.U32(v)))
			}
		})
	}
	return id, err
}

// NSIDFor returns the number that other has for the namespace that ns calls id. It returns -1 if there is none yet,
// or if the kernel cannot tell (before Linux 5.0).
func NSIDFor(ns *kernel.NS, other *kernel.NS, id int) (int, error) {
	target, err := NSID(ns, other)
	if err != nil || target < 0 || id < 0 {
		return -1, err
	}
	req := newRequest(unix.RTM_GETNSID, 0, [4]byte{})
	req.Host32(unix.NETNSA_NSID, uint32(id))
	req.Host32(unix.NETNSA_TARGET_NSID, uint32(target))
	msgs, err := Call(ns, req, unix.RTM_NEWNSID)
	if err != nil || len(msgs) == 0 {
		return -1, err
	}
	there, told := -1, false
	netlink.EachAttr(msgs[0][min(4, len(msgs[0])):], func(kind uint16, v []byte) {
		switch kind {
		case unix.NETNSA_NSID:
			there = int(int32(netlink.U32(v)))
		case unix.NETNSA_CURRENT_NSID: // an older kernel answers with the number that it was asked about
			told = true
		}
	})
	if !told {
		there = -1
	}
	return there, nil
}

// NSIDs returns the numbers that ns has for other namespaces, of those that still exist.
func NSIDs(ns *kernel.NS) (ids []int, err error) {
	msgs, err := Dump(ns, unix.RTM_NEWNSID, func() *netlink.Request {
		req := newRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP, [4]byte{})
		return req
	})
	if err != nil {
		return nil, fmt.Errorf("list numbers of namespaces: %w", err)
	}
	for _, m := range msgs {
		netlink.EachAttr(m[min(4, len(m)):], func(kind uint16, v []byte) {
			if kind == unix.NETNSA_NSID {
				ids = append(ids, int(int32(netlink.U32(v))))
			}
		})
	}
	return ids, nil
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
		if err := Tell(ns, req); err != nil && !netlink.Is(err, unix.EEXIST) {
			return -1, fmt.Errorf("number a namespace: %w", err)
		}
	}
	return -1, errors.New("number a namespace: the kernel gives none")
}
