package rtnl

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoLink means that there is no link of that name.
var ErrNoLink = errors.New("link does not exist")

// A NoLink is an ErrNoLink that contains the name.
type NoLink struct{ Name string }

func (e NoLink) Error() string { return "link " + e.Name + ": " + ErrNoLink.Error() }

func (e NoLink) Unwrap() error { return ErrNoLink }

// A Link is what the kernel tells about a link.
type Link struct {
	Index       int
	Name        string
	Kind        string // veth, bridge, …; empty for a device of no kind
	Ethernet    bool   // its packets have Ethernet headers; lo's do not count
	MAC         net.HardwareAddr
	MTU         int
	Up          bool // set up
	Operational bool // up and able to carry packets
	Promisc     bool // as it was asked for; what a bridge does to its ports does not count
	promiscuity int  // how many want it so, and what stands on the link with them
	AllMulti    bool // likewise: receive every multicast packet
	TxQLen      int  // packets that may wait to be sent
	ARPNotify   bool // a new address of the link is announced by ARP
	Master      int  // index of the bridge, bond or vrf that it belongs to, or zero
	Group       uint32
	Alias       string
	Port        *BridgePort // where Master is a bridge, else nil
	Traits      Traits
	XDP         uint32           // id of the program at XDP, or zero
	Permanent   net.HardwareAddr // that of the card, which does not change (Linux 5.6)

	Data KindData

	// Peer is the index of a veth's other end, or of the link that a macvlan, ipvlan or vlan stands on. It is in
	// the namespace that this one calls PeerNS where PeerAway, else in this one. PeerNS is -1 for a namespace that
	// is dying.
	Peer     int
	PeerAway bool
	PeerNS   int

	// The device that it is the link of, as in /sys/bus/BUS/devices/DEVICE (Linux 5.14); empty for virtual ones.
	ParentBus, ParentDevice string

	altNames, conf4, conf6, kindData []byte // see AltNames, Settings and Params
}

// A BridgePort is what a bridge tells about one of its ports.
type BridgePort struct{ Hairpin, Isolated, Forwarding bool }

const (
	brForwarding = 3 // BR_STATE_FORWARDING
	operUp       = 6 // IF_OPER_UP
	operUnknown  = 0 // IF_OPER_UNKNOWN: of lo and of tunnels, which have no carrier to watch
	skipStats    = 8 // RTEXT_FILTER_SKIP_STATS: half of the answer, and it is not read here

	inetConf  = 1  // IFLA_INET_CONF
	inet6Conf = 2  // IFLA_INET6_CONF
	arpNotify = 22 // IPV4_DEVCONF_ARP_NOTIFY
	rpFilter  = 8  // IPV4_DEVCONF_RP_FILTER

	addrGenMode = 8 // IFLA_INET6_ADDR_GEN_MODE
	addrGenNone = 1 // IN6_ADDR_GEN_MODE_NONE
)

// LinkByName returns the link of that name. The error is a NoLink if there is none.
func LinkByName(ns *kernel.NS, name string) (*Link, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return nil, fmt.Errorf("link %q: %w", name, ErrNoLink)
	}
	return getLink(ns, name, 0, func(b *netlink.Buffer) { b.Str(unix.IFLA_IFNAME, name) })
}

// IndexOf returns the index of the link of that name. It takes a tenth of the time of LinkByName.
func IndexOf(ns *kernel.NS, name string) (int, error) {
	ifr, err := unix.NewIfreq(name)
	if err != nil || name == "" {
		return 0, fmt.Errorf("link %q: %w", name, ErrNoLink)
	}
	c, err := ns.Conn(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	if err = unix.IoctlIfreq(c.FD, unix.SIOCGIFINDEX, ifr); netlink.Is(err, unix.ENODEV) {
		return 0, NoLink{name}
	}
	if err != nil {
		return 0, fmt.Errorf("link %s: %w", name, err)
	}
	return int(ifr.Uint32()), nil
}

// LinkByIndex returns the link with that index.
func LinkByIndex(ns *kernel.NS, index int) (*Link, error) {
	return getLink(ns, fmt.Sprintf("#%d", index), index, nil)
}

func getLink(ns *kernel.NS, what string, index int, by func(*netlink.Buffer)) (*Link, error) {
	msgs, err := Call(ns, linkRequest(0, index, by), unix.RTM_NEWLINK)
	if netlink.Is(err, unix.ENODEV) || err == nil && len(msgs) == 0 {
		return nil, NoLink{what}
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", what, err)
	}
	return parseLink(msgs[0]), nil
}

// NameOf returns the name of the link with that index, "#7" if there is no such link, and "none" for zero.
func NameOf(ns *kernel.NS, index int) string {
	if index == 0 {
		return "none"
	}
	l, err := LinkByIndex(ns, index)
	if err != nil {
		return fmt.Sprintf("#%d", index)
	}
	return l.Name
}

// Links returns all links of the namespace.
func Links(ns *kernel.NS) ([]*Link, error) {
	links, err := listLinks(ns, nil)
	return links, netlink.About(err, "list links")
}

// LinksIn returns all links of the namespace that ns calls id (Linux 4.20). Their PeerNS is a number of ns, too.
func LinksIn(ns *kernel.NS, id int) ([]*Link, error) {
	links, err := listLinks(ns, func(b *netlink.Buffer) { b.Host32(unix.IFLA_TARGET_NETNSID, uint32(id)) })
	return links, netlink.About(err, "list links")
}

// Ports returns the ports of the bridge with that index.
func Ports(ns *kernel.NS, bridge int) ([]*Link, error) {
	ports, err := listLinks(ns, func(b *netlink.Buffer) { b.Host32(unix.IFLA_MASTER, uint32(bridge)) })
	other := func(l *Link) bool { return l.Master != bridge }
	return slices.DeleteFunc(ports, other), netlink.About(err, "list ports of link #%d", bridge)
}

func listLinks(ns *kernel.NS, which func(*netlink.Buffer)) ([]*Link, error) {
	msgs, err := Dump(ns, linkRequest(unix.NLM_F_DUMP, 0, which), unix.RTM_NEWLINK)
	links := make([]*Link, len(msgs))
	for i, m := range msgs {
		links[i] = parseLink(m)
	}
	return links, err
}

// linkRequest returns the request for the link of an index, or for the links that the attributes select.
func linkRequest(flags, index int, which func(*netlink.Buffer)) *netlink.Request {
	req := newRequest(unix.RTM_GETLINK, flags, unix.IfInfomsg{Index: int32(index)})
	req.Host32(unix.IFLA_EXT_MASK, skipStats)
	if which != nil {
		which(&req.Buffer)
	}
	return req
}

// Watchers returns how many listeners receive packets that are not for the link: programs, and macvlans on a bridge,
// in any namespace. Promiscuous mode that an administrator has set does not count.
func (l *Link) Watchers() int {
	if l.Promisc {
		return l.promiscuity - 1
	}
	return l.promiscuity
}

func parseLink(b []byte) *Link {
	if len(b) < unix.SizeofIfInfomsg {
		return &Link{}
	}
	flags := netlink.U32(b[8:])
	l := &Link{Index: int(netlink.U32(b[4:])), Ethernet: netlink.U16(b[2:]) == unix.ARPHRD_ETHER,
		Up:      flags&unix.IFF_UP != 0,
		Promisc: flags&unix.IFF_PROMISC != 0, AllMulti: flags&unix.IFF_ALLMULTI != 0}
	l.Traits.Flags = flags & traitFlags
	netlink.EachAttr(b[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = netlink.Text(v)
		case unix.IFLA_ADDRESS:
			l.MAC = v
		case unix.IFLA_MTU:
			l.MTU = int(netlink.U32(v))
		case unix.IFLA_PROMISCUITY:
			l.promiscuity = int(netlink.U32(v))
		case unix.IFLA_TXQLEN:
			l.TxQLen = int(netlink.U32(v))
		case unix.IFLA_MASTER:
			l.Master = int(netlink.U32(v))
		case unix.IFLA_GROUP:
			l.Group = netlink.U32(v)
		case unix.IFLA_IFALIAS:
			l.Alias = netlink.Text(v)
		case unix.IFLA_OPERSTATE:
			l.Operational = l.Up && len(v) > 0 && (v[0] == operUp || v[0] == operUnknown)
		case unix.IFLA_PARENT_DEV_BUS_NAME:
			l.ParentBus = netlink.Text(v)
		case unix.IFLA_PARENT_DEV_NAME:
			l.ParentDevice = netlink.Text(v)
		case unix.IFLA_LINK:
			l.Peer = int(netlink.U32(v))
		case unix.IFLA_LINK_NETNSID:
			l.PeerAway, l.PeerNS = true, int(int32(netlink.U32(v)))
		case unix.IFLA_PROP_LIST:
			l.altNames = v
		case unix.IFLA_AF_SPEC:
			netlink.EachAttr(v, l.parseFamily)
		case unix.IFLA_LINKINFO:
			netlink.EachAttr(v, l.parseInfo)
		default:
			l.parseTrait(kind, v)
		}
	})
	return l
}

// parseFamily takes what one family of addresses has of the link.
func (l *Link) parseFamily(family uint16, v []byte) {
	netlink.EachAttr(v, func(kind uint16, v []byte) {
		switch {
		case family == unix.AF_INET6 && kind == inet6Conf:
			l.conf6 = v
		case family == unix.AF_INET && kind == inetConf:
			l.conf4 = v
			if len(v) >= 4*arpNotify { // an array that counts from 1
				l.ARPNotify = netlink.U32(v[4*(arpNotify-1):]) != 0
			}
		}
	})
}

func (l *Link) parseInfo(kind uint16, v []byte) {
	switch kind {
	case unix.IFLA_INFO_KIND:
		l.Kind = netlink.Text(v)
	case unix.IFLA_INFO_DATA:
		l.kindData = v
		l.parseData(v)
	case unix.IFLA_INFO_SLAVE_KIND: // comes before the data, and says how its attributes are numbered
		if netlink.Text(v) == "bridge" {
			l.Port = &BridgePort{}
		}
	case unix.IFLA_INFO_SLAVE_DATA:
		netlink.EachAttr(v, func(kind uint16, v []byte) {
			if l.Port == nil || len(v) != 1 {
				return
			}
			switch kind {
			case unix.IFLA_BRPORT_STATE:
				l.Port.Forwarding = v[0] == brForwarding
			case unix.IFLA_BRPORT_MODE:
				l.Port.Hairpin = v[0] != 0
			case unix.IFLA_BRPORT_ISOLATED:
				l.Port.Isolated = v[0] != 0
			}
		})
	}
}
