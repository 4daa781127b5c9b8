package rtnl

import (
	"fmt"
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A LinkChange tells SetLink and MoveLink what to change. A zero field stays as it is.
type LinkChange struct {
	Up, Down bool
	Promisc  *bool
	AllMulti *bool
	MAC      net.HardwareAddr
	MTU      int
	TxQLen   *int
	Alias    string
	Group    *uint32
	Master   int         // the index of a bridge; -1 takes the link off the one that it is a port of
	Port     *BridgePort // the link has to be a port already: the kernel takes this before the master

	// ARPNotify and RPFilter are sysctls that a message can set, which costs a tenth of the file, and which works in a
	// container, where the files are read-only. The kernel takes them after MAC, so what is to be announced is set in
	// another message.
	ARPNotify bool
	RPFilter  uint32 // 1 is strict, 2 is loose

	NoLinkLocal bool // no IPv6 address of the kernel's making

	// To is the namespace that MoveLink moves the link to. Rename is the name, and Index the index, that the link gets
	// there. Index is EBUSY where another link has it, and takes Linux 5.13.
	To     *kernel.NS
	Rename string
	Index  int
}

// SetLink changes the link of that name, in one message. The kernel applies the parts in order. If it refuses one,
// the earlier parts stay changed.
func SetLink(ns *kernel.NS, name string, c LinkChange) error {
	err := Tell(ns, c.request(unix.IfInfomsg{}, name))
	if c.NoLinkLocal && netlink.Is(err, unix.EAFNOSUPPORT) { // IPv6 is off, or has no room in so small an MTU
		c.NoLinkLocal = false
		return SetLink(ns, name, c)
	}
	return netlink.About(linkError(err), "set link %s", name)
}

// MoveLink changes the link of that index, in one message: it moves the link into another namespace, or renames it in
// its namespace. The kernel moves the link under its old name and renames it in the new namespace, so no process here
// sees the new name. The link goes down and loses its master, addresses, routes and settings.
//
// If the kernel fails halfway, MoveLink returns an error and the link stays where it is by then.
func MoveLink(ns *kernel.NS, index int, c LinkChange) error {
	err := Tell(ns, c.request(unix.IfInfomsg{Index: int32(index)}, c.Rename))
	if netlink.Is(err, unix.EEXIST) {
		err = fmt.Errorf("%s: %w", c.Rename, ErrLinkExists)
	}
	return netlink.About(linkError(err), "move link #%d", index)
}

// linkError says what the kernel's error number means for a link.
func linkError(err error) error {
	if netlink.Is(err, unix.ENODEV) {
		return ErrNoLink
	}
	return full(err)
}

// request returns the message for a link that changes all of c.
func (c LinkChange) request(msg unix.IfInfomsg, name string) *netlink.Request {
	flag := func(bit uint32, on bool) {
		msg.Change |= bit
		if on {
			msg.Flags |= bit
		}
	}
	if c.Up || c.Down {
		flag(unix.IFF_UP, c.Up)
	}
	if c.Promisc != nil {
		flag(unix.IFF_PROMISC, *c.Promisc)
	}
	if c.AllMulti != nil {
		flag(unix.IFF_ALLMULTI, *c.AllMulti)
	}
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK, msg)
	c.put(&req.Buffer, name)
	return req
}

// put appends the attributes of a link of that name.
func (c LinkChange) put(b *netlink.Buffer, name string) {
	b.OptStr(unix.IFLA_IFNAME, name)
	if c.To != nil {
		b.Host32(unix.IFLA_NET_NS_FD, uint32(c.To.FD))
	}
	b.Opt32(unix.IFLA_NEW_IFINDEX, uint32(c.Index))
	b.OptAttr(unix.IFLA_ADDRESS, c.MAC...)
	b.Opt32(unix.IFLA_MTU, uint32(c.MTU))
	if c.TxQLen != nil {
		b.Host32(unix.IFLA_TXQLEN, uint32(*c.TxQLen))
	}
	b.OptAttr(unix.IFLA_IFALIAS, []byte(c.Alias)...)
	if c.Group != nil {
		b.Host32(unix.IFLA_GROUP, *c.Group)
	}
	if c.Master != 0 {
		b.Host32(unix.IFLA_MASTER, uint32(max(c.Master, 0)))
	}
	if c.ARPNotify || c.RPFilter != 0 {
		settings := func() {
			if c.ARPNotify {
				b.Host32(arpNotify, 1)
			}
			b.Opt32(rpFilter, c.RPFilter)
		}
		b.Nest(unix.IFLA_AF_SPEC, func() {
			b.Nest(unix.AF_INET, func() { b.Nest(inetConf, settings) })
		})
	}
	if c.NoLinkLocal {
		b.Nest(unix.IFLA_AF_SPEC, func() {
			b.Nest(unix.AF_INET6, func() { b.Attr(addrGenMode, addrGenNone) })
		})
	}
	if c.Port != nil {
		b.Nest(unix.IFLA_LINKINFO, func() {
			b.Attr(unix.IFLA_INFO_SLAVE_KIND, []byte("bridge")...)
			b.Nest(unix.IFLA_INFO_SLAVE_DATA, func() {
				b.Bool(unix.IFLA_BRPORT_MODE, c.Port.Hairpin)
				b.Bool(unix.IFLA_BRPORT_ISOLATED, c.Port.Isolated)
			})
		})
	}
}

// DelLink deletes a link, and the peer of a veth with it. The kernel answers after a grace period of 10 ms and more.
// Until then, the names, addresses and routes of other links stay. It is no error if the link does not exist.
func DelLink(ns *kernel.NS, index int) error { return delLink(ns, index, nil) }

// DelLinkIn deletes a link in the namespace that ns calls id. It is no error if the link does not exist.
func DelLinkIn(ns *kernel.NS, id, index int) error {
	return delLink(ns, index, func(b *netlink.Buffer) { b.Host32(unix.IFLA_TARGET_NETNSID, uint32(id)) })
}

// DelGroup deletes every link of a group within one grace period.
func DelGroup(ns *kernel.NS, group uint32) error {
	req := newRequest(unix.RTM_DELLINK, unix.NLM_F_ACK, unix.IfInfomsg{})
	req.Host32(unix.IFLA_GROUP, group)
	return netlink.About(netlink.Except(Tell(ns, req), unix.ENODEV), "delete links of group %#x", group)
}

func delLink(ns *kernel.NS, index int, in func(*netlink.Buffer)) error {
	req := newRequest(unix.RTM_DELLINK, unix.NLM_F_ACK, unix.IfInfomsg{Index: int32(index)})
	if in != nil {
		in(&req.Buffer)
	}
	return netlink.About(netlink.Except(Tell(ns, req), unix.ENODEV), "delete link #%d", index)
}

// SetAlias sets the alias of a link. An empty alias removes it.
func SetAlias(ns *kernel.NS, index int, alias string) error {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK, unix.IfInfomsg{Index: int32(index)})
	req.Attr(unix.IFLA_IFALIAS, []byte(alias)...)
	return netlink.About(Tell(ns, req), "alias of link #%d", index)
}
