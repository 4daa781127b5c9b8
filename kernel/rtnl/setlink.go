package rtnl

import (
	"fmt"
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A LinkChange tells SetLink what to change. A zero field stays as it is.
type LinkChange struct {
	Up, Down bool
	Promisc  *bool
	AllMulti *bool
	MAC      net.HardwareAddr
	MTU      int
	TxQLen   *int
	Alias    string
	Group    uint32
	Master   int         // the index of a bridge; -1 takes the link off the one that it is a port of
	Port     *BridgePort // the link has to be a port already: the kernel takes this before the master

	// ARPNotify and RPFilter are sysctls that a message can set, which costs a tenth of the file, and which works in a
	// container, where the files are read-only. The kernel takes them after MAC, so what is to be announced is set in
	// another message.
	ARPNotify bool
	RPFilter  uint32 // 1 is strict, 2 is loose

	NoLinkLocal bool // no IPv6 address of the kernel's making
}

// SetLink changes the link of that name, in one message. The kernel applies the parts in order. If it refuses one,
// the earlier parts stay changed.
func SetLink(ns *kernel.NS, name string, c LinkChange) error {
	if err := Tell(ns, c.request(name)); err != nil {
		if c.NoLinkLocal && netlink.Is(err, unix.EAFNOSUPPORT) { // IPv6 is off, or has no room in so small an MTU
			c.NoLinkLocal = false
			return SetLink(ns, name, c)
		}
		if netlink.Is(err, unix.ENODEV) {
			err = ErrNoLink
		}
		return fmt.Errorf("set link %s: %w", name, full(err))
	}
	return nil
}

// request is the message that says all of c.
func (c LinkChange) request(name string) *netlink.Request {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK, c.flags())
	req.Str(unix.IFLA_IFNAME, name)
	if c.MAC != nil {
		req.Attr(unix.IFLA_ADDRESS, c.MAC...)
	}
	if c.MTU != 0 {
		req.Host32(unix.IFLA_MTU, uint32(c.MTU))
	}
	if c.TxQLen != nil {
		req.Host32(unix.IFLA_TXQLEN, uint32(*c.TxQLen))
	}
	if c.Alias != "" {
		req.Attr(unix.IFLA_IFALIAS, []byte(c.Alias)...)
	}
	if c.Group != 0 {
		req.Host32(unix.IFLA_GROUP, c.Group)
	}
	if c.Master != 0 {
		req.Host32(unix.IFLA_MASTER, uint32(max(c.Master, 0)))
	}
	if c.ARPNotify || c.RPFilter != 0 {
		settings := func() {
			if c.ARPNotify {
				req.Host32(arpNotify, 1)
			}
			if c.RPFilter != 0 {
				req.Host32(rpFilter, c.RPFilter)
			}
		}
		req.Nest(unix.IFLA_AF_SPEC, func() {
			req.Nest(unix.AF_INET, func() { req.Nest(inetConf, settings) })
		})
	}
	if c.NoLinkLocal {
		req.Nest(unix.IFLA_AF_SPEC, func() {
			req.Nest(unix.AF_INET6, func() { req.Attr(addrGenMode, addrGenNone) })
		})
	}
	if c.Port != nil {
		req.Nest(unix.IFLA_LINKINFO, func() {
			req.Attr(unix.IFLA_INFO_SLAVE_KIND, []byte("bridge")...)
			req.Nest(unix.IFLA_INFO_SLAVE_DATA, func() {
				req.Bool(unix.IFLA_BRPORT_MODE, c.Port.Hairpin)
				req.Bool(unix.IFLA_BRPORT_ISOLATED, c.Port.Isolated)
			})
		})
	}
	return req
}

// flags are the IFF_ that c is about.
func (c LinkChange) flags() (msg unix.IfInfomsg) {
	if c.Up || c.Down {
		msg.Change |= unix.IFF_UP
		if c.Up {
			msg.Flags |= unix.IFF_UP
		}
	}
	for _, f := range []struct {
		on  *bool
		bit uint32
	}{{c.Promisc, unix.IFF_PROMISC}, {c.AllMulti, unix.IFF_ALLMULTI}} {
		if f.on != nil {
			msg.Change |= f.bit
			if *f.on {
				msg.Flags |= f.bit
			}
		}
	}
	return msg
}

// DelLink deletes a link, and the peer of a veth with it. The kernel answers after a grace period of 10 ms and more.
// Until then, the names, addresses and routes of other links stay. It is no error if the link does not exist.
func DelLink(ns *kernel.NS, index int) error { return delLink(ns, index, nil) }

// DelLinkIn deletes a link in the namespace that ns calls id. It is no error if the link does not exist.
func DelLinkIn(ns *kernel.NS, id, index int) error {
	return delLink(ns, index, func(b *netlink.Buffer) { b.Host32(unix.IFLA_TARGET_NETNSID, uint32(id)) })
}

func delLink(ns *kernel.NS, index int, in func(*netlink.Buffer)) error {
	req := newRequest(unix.RTM_DELLINK, unix.NLM_F_ACK, unix.IfInfomsg{Index: int32(index)})
	if in != nil {
		in(&req.Buffer)
	}
	if err := Tell(ns, req); err != nil && !netlink.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link #%d: %w", index, err)
	}
	return nil
}

// DelGroup deletes every link of a group within one grace period.
func DelGroup(ns *kernel.NS, group uint32) error {
	req := newRequest(unix.RTM_DELLINK, unix.NLM_F_ACK, unix.IfInfomsg{})
	req.Host32(unix.IFLA_GROUP, group)
	if err := Tell(ns, req); err != nil && !netlink.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete links of group %#x: %w", group, err)
	}
	return nil
}

// SetAlias sets the alias of a link. An empty alias removes it.
func SetAlias(ns *kernel.NS, index int, alias string) error {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK, unix.IfInfomsg{Index: int32(index)})
	req.Attr(unix.IFLA_IFALIAS, []byte(alias)...)
	if err := Tell(ns, req); err != nil {
		return fmt.Errorf("alias of link #%d: %w", index, err)
	}
	return nil
}
