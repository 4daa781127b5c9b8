package rtnl

import (
	"fmt"
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A Move tells MoveLink what to change. A zero field stays as it is.
type Move struct {
	To    *kernel.NS // where it goes
	Name  string     // it has there
	Index int        // likewise (Linux 5.13, others choose one); EBUSY where that is another link's
	Alias string
	Group *uint32
	MAC   net.HardwareAddr
	MTU   int
	Up    bool
	Down  bool
}

// MoveLink moves a link into another namespace, or renames it in its namespace, in one message. The kernel moves the
// link under its old name and renames it in the new namespace, so no process here sees the new name. The link goes
// down and loses its master, addresses, routes and settings.
//
// If the kernel fails halfway, MoveLink returns an error and the link stays where it is by then.
func MoveLink(ns *kernel.NS, index int, m Move) error {
	msg := unix.IfInfomsg{Index: int32(index)}
	if m.Up || m.Down {
		msg.Change |= unix.IFF_UP
	}
	if m.Up {
		msg.Flags |= unix.IFF_UP
	}
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK, msg)
	if m.To != nil {
		req.Host32(unix.IFLA_NET_NS_FD, uint32(m.To.FD))
	}
	if m.Name != "" {
		req.Str(unix.IFLA_IFNAME, m.Name)
	}
	if m.Index != 0 {
		req.Host32(unix.IFLA_NEW_IFINDEX, uint32(m.Index))
	}
	if m.Group != nil {
		req.Host32(unix.IFLA_GROUP, *m.Group)
	}
	if m.MAC != nil {
		req.Attr(unix.IFLA_ADDRESS, m.MAC...)
	}
	if m.MTU != 0 {
		req.Host32(unix.IFLA_MTU, uint32(m.MTU))
	}
	if m.Alias != "" {
		req.Attr(unix.IFLA_IFALIAS, []byte(m.Alias)...)
	}
	err := Tell(ns, req)
	switch {
	case netlink.Is(err, unix.ENODEV):
		err = ErrNoLink
	case netlink.Is(err, unix.EEXIST):
		err = fmt.Errorf("%s: %w", m.Name, ErrLinkExists)
	}
	if err != nil {
		return fmt.Errorf("move link #%d: %w", index, err)
	}
	return nil
}
