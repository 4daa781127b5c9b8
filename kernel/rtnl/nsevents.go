package rtnl

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A NamespaceEvent is an event in a namespace for which the listening namespace has a number (NSID).
type NamespaceEvent struct {
	Namespace int  // its number; -1 is the listener's own
	Died      bool // it has gone, and its number with it
	Link      *Link
	Deleted   bool // Link was
	Lost      bool // some events were lost, and nothing else is said
}

// WatchNamespaces calls f for each change of links in every namespace that ns has a number for (see AssignNSID), and
// when such a namespace ends. It uses one socket in ns. A socket inside a container's namespace would keep that
// namespace alive after the container. WatchNamespaces returns when stop is closed.
func WatchNamespaces(ns *kernel.NS, stop <-chan struct{}, f func(NamespaceEvent)) error {
	// With room for a burst of containers; what is lost is said.
	file, err := ns.Events(unix.NETLINK_ROUTE, 1<<20, unix.RTNLGRP_LINK, unix.RTNLGRP_NSID)
	if err != nil {
		return fmt.Errorf("open a socket for events: %w", err)
	}
	defer file.Close()
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1)
	})
	if err = cmp.Or(err, serr); err != nil {
		return fmt.Errorf("listen to other namespaces (it takes CAP_NET_BROADCAST): %w", err)
	}
	go func() {
		<-stop
		file.SetReadDeadline(time.Unix(1, 0))
	}()
	f(NamespaceEvent{Lost: true}) // what was before this is unknown
	buf, oob := make([]byte, 64<<10), make([]byte, 64)
	for {
		var n, oobn int
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			n, oobn, _, _, rerr = unix.Recvmsg(int(fd), buf, oob, 0)
			return rerr != unix.EAGAIN
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		case rerr == unix.ENOBUFS:
			f(NamespaceEvent{Lost: true})
			continue
		case rerr == unix.EINTR:
			continue
		case rerr != nil:
			return fmt.Errorf("receive events: %w", rerr)
		}
		events(buf[:n], sender(oob[:oobn]), f)
	}
}

// sender is the number of the namespace that a datagram tells of.
func sender(oob []byte) int {
	from := -1
	if cmsgs, err := unix.ParseSocketControlMessage(oob); err == nil {
		for _, m := range cmsgs {
			if m.Header.Level == unix.SOL_NETLINK && m.Header.Type == unix.NETLINK_LISTEN_ALL_NSID && len(m.Data) >= 4 {
				from = int(int32(netlink.U32(m.Data)))
			}
		}
	}
	return from
}

// events takes a datagram apart.
func events(b []byte, from int, f func(NamespaceEvent)) {
	for m := range netlink.Messages(b) {
		switch m.Type {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			f(NamespaceEvent{
				Namespace: from, Link: parseLink(bytes.Clone(m.Body)), Deleted: m.Type == unix.RTM_DELLINK,
			})
		case unix.RTM_DELNSID:
			// Another namespace's event is about a number that it had.
			if id := nsidIn(m.Body, unix.NETNSA_NSID); from == -1 && id >= 0 {
				f(NamespaceEvent{Namespace: id, Died: true})
			}
		}
	}
}
