package kernel

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNoLink says that there is no link of that name.
var ErrNoLink = errors.New("link does not exist")

// A NoLink is the ErrNoLink of a name.
type NoLink struct{ Name string }

func (e NoLink) Error() string { return "link " + e.Name + ": " + ErrNoLink.Error() }
func (e NoLink) Unwrap() error { return ErrNoLink }

// A Link is what the kernel says of a link.
type Link struct {
	Index       int
	Name        string
	Kind        string // veth, bridge, …; empty for a device of no kind
	Ethernet    bool   // its packets have Ethernet headers; lo's do not count
	MAC         net.HardwareAddr
	MTU         int
	Up          bool // set up
	Operational bool // up and able to carry packets
	Promisc     bool // as somebody asked for; what a bridge does to its ports does not count
	promiscuity int  // how many want it so, and what stands on the link with them
	AllMulti    bool // likewise: receive every multicast packet
	TxQLen      int  // packets that may wait to be sent
	ARPNotify   bool // a new address of the link is announced by ARP
	Master      int  // index of the bridge, bond or vrf that it belongs to, or zero
	Group       uint32
	Alias       string
	Port        *BridgePort // where Master is a bridge, else nil
	Traits      Traits
	Permanent   net.HardwareAddr // that of the card, which nobody changes (Linux 5.6)

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

// A BridgePort is what a bridge keeps of a port of its own.
type BridgePort struct{ Hairpin, Isolated, Forwarding bool }

const (
	brForwarding = 3 // BR_STATE_FORWARDING
	operUp       = 6 // IF_OPER_UP
	operUnknown  = 0 // IF_OPER_UNKNOWN: of lo and of tunnels, which have no carrier to watch
	skipStats    = 8 // RTEXT_FILTER_SKIP_STATS: half of the answer, and nobody here reads them

	inetConf  = 1  // IFLA_INET_CONF
	inet6Conf = 2  // IFLA_INET6_CONF
	arpNotify = 22 // IPV4_DEVCONF_ARP_NOTIFY

	addrGenMode = 8 // IFLA_INET6_ADDR_GEN_MODE
	addrGenNone = 1 // IN6_ADDR_GEN_MODE_NONE
)

// Link is the link of that name.
func (ns *NS) Link(name string) (*Link, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return nil, fmt.Errorf("link %q: %w", name, ErrNoLink)
	}
	return ns.getLink(name, 0, attrText(unix.IFLA_IFNAME, name))
}

// Index is the index of the link of that name: Link for a tenth of the price.
func (ns *NS) Index(name string) (int, error) {
	ifr, err := unix.NewIfreq(name)
	if err != nil || name == "" {
		return 0, fmt.Errorf("link %q: %w", name, ErrNoLink)
	}
	c, err := ns.conn(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	if err = unix.IoctlIfreq(c.fd, unix.SIOCGIFINDEX, ifr); is(err, unix.ENODEV) {
		return 0, NoLink{name}
	}
	if err != nil {
		return 0, fmt.Errorf("link %s: %w", name, err)
	}
	return int(ifr.Uint32()), nil
}

// LinkAt is the link of that index.
func (ns *NS) LinkAt(index int) (*Link, error) {
	return ns.getLink(fmt.Sprintf("#%d", index), index)
}

func (ns *NS) getLink(what string, index int, by ...*nl.RtAttr) (*Link, error) {
	req := newRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(attrU32(unix.IFLA_EXT_MASK, skipStats))
	for _, a := range by {
		req.AddData(a)
	}
	msgs, err := ns.Call(req, unix.RTM_NEWLINK)
	if is(err, unix.ENODEV) || err == nil && len(msgs) == 0 {
		return nil, NoLink{what}
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", what, err)
	}
	return parseLink(msgs[0]), nil
}

// Links is every link of the namespace.
func (ns *NS) Links() ([]*Link, error) {
	msgs, err := ns.dump(unix.RTM_NEWLINK, func() *nl.NetlinkRequest {
		req := newRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		req.AddData(attrU32(unix.IFLA_EXT_MASK, skipStats))
		return req
	})
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	links := make([]*Link, len(msgs))
	for i, m := range msgs {
		links[i] = parseLink(m)
	}
	return links, nil
}

// Ports are the links that belong to a bridge of that index.
func (ns *NS) Ports(bridge int) ([]*Link, error) {
	msgs, err := ns.dump(unix.RTM_NEWLINK, func() *nl.NetlinkRequest {
		req := newRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		req.AddData(attrU32(unix.IFLA_EXT_MASK, skipStats))
		req.AddData(attrU32(unix.IFLA_MASTER, uint32(bridge)))
		return req
	})
	if err != nil {
		return nil, fmt.Errorf("list ports of link #%d: %w", bridge, err)
	}
	var ports []*Link
	for _, m := range msgs {
		if l := parseLink(m); l.Master == bridge {
			ports = append(ports, l)
		}
	}
	return ports, nil
}

// Watchers is how many listen to what is not for the link: programs, and macvlans on a bridge, in whatever namespace
// they are. Whoever set it promiscuous does not count.
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
	flags := u32(b[8:])
	l := &Link{Index: int(u32(b[4:])), Ethernet: u16(b[2:]) == unix.ARPHRD_ETHER, Up: flags&unix.IFF_UP != 0,
		Promisc: flags&unix.IFF_PROMISC != 0, AllMulti: flags&unix.IFF_ALLMULTI != 0}
	l.Traits.Flags = flags & traitFlags
	EachAttr(b[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = text(v)
		case unix.IFLA_ADDRESS:
			l.MAC = v
		case unix.IFLA_MTU:
			l.MTU = int(u32(v))
		case unix.IFLA_PROMISCUITY:
			l.promiscuity = int(u32(v))
		case unix.IFLA_TXQLEN:
			l.TxQLen = int(u32(v))
		case unix.IFLA_MASTER:
			l.Master = int(u32(v))
		case unix.IFLA_GROUP:
			l.Group = u32(v)
		case unix.IFLA_IFALIAS:
			l.Alias = text(v)
		case unix.IFLA_OPERSTATE:
			l.Operational = l.Up && len(v) > 0 && (v[0] == operUp || v[0] == operUnknown)
		case unix.IFLA_PARENT_DEV_BUS_NAME:
			l.ParentBus = text(v)
		case unix.IFLA_PARENT_DEV_NAME:
			l.ParentDevice = text(v)
		case unix.IFLA_LINK:
			l.Peer = int(u32(v))
		case unix.IFLA_LINK_NETNSID:
			l.PeerAway, l.PeerNS = true, int(int32(u32(v)))
		case unix.IFLA_PROP_LIST:
			l.altNames = v
		case unix.IFLA_AF_SPEC:
			EachAttr(v, func(family uint16, v []byte) {
				EachAttr(v, func(kind uint16, v []byte) {
					switch {
					case family == unix.AF_INET6 && kind == inet6Conf:
						l.conf6 = v
					case family == unix.AF_INET && kind == inetConf:
						l.conf4 = v
						if len(v) >= 4*arpNotify { // an array that counts from 1
							l.ARPNotify = u32(v[4*(arpNotify-1):]) != 0
						}
					}
				})
			})
		case unix.IFLA_LINKINFO:
			EachAttr(v, l.parseInfo)
		default:
			l.parseTrait(kind, v)
		}
	})
	return l
}

func (l *Link) parseInfo(kind uint16, v []byte) {
	switch kind {
	case unix.IFLA_INFO_KIND:
		l.Kind = text(v)
	case unix.IFLA_INFO_DATA:
		l.kindData = v
		l.parseData(v)
	case unix.IFLA_INFO_SLAVE_KIND: // comes before the data, and says how its attributes are numbered
		if text(v) == "bridge" {
			l.Port = &BridgePort{}
		}
	case unix.IFLA_INFO_SLAVE_DATA:
		EachAttr(v, func(kind uint16, v []byte) {
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

// A LinkChange is what SetLink is to change; a zero field leaves it as it is.
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

	// ARPNotify is the one sysctl that a message can set, which costs a tenth of the file. The kernel takes it
	// after MAC, so what is to be announced is set in another message.
	ARPNotify bool

	NoLinkLocal bool // no IPv6 address of the kernel's making
}

// SetLink changes the link of that name, in one message. The kernel takes its parts one after the other: where
// it refuses one, those before it are changed.
func (ns *NS) SetLink(name string, c LinkChange) error {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
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
	req.AddData(msg)
	req.AddData(attrText(unix.IFLA_IFNAME, name))
	if c.MAC != nil {
		req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, c.MAC))
	}
	if c.MTU != 0 {
		req.AddData(attrU32(unix.IFLA_MTU, uint32(c.MTU)))
	}
	if c.TxQLen != nil {
		req.AddData(attrU32(unix.IFLA_TXQLEN, uint32(*c.TxQLen)))
	}
	if c.Alias != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(c.Alias)))
	}
	if c.Group != 0 {
		req.AddData(attrU32(unix.IFLA_GROUP, c.Group))
	}
	if c.Master != 0 {
		req.AddData(attrU32(unix.IFLA_MASTER, uint32(max(c.Master, 0))))
	}
	if c.ARPNotify {
		inet := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		inet.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(arpNotify, nl.Uint32Attr(1))
		req.AddData(inet)
	}
	if c.NoLinkLocal {
		inet6 := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		inet6.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(addrGenMode, []byte{addrGenNone})
		req.AddData(inet6)
	}
	if c.Port != nil {
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(unix.IFLA_INFO_SLAVE_KIND, []byte("bridge"))
		data := info.AddRtAttr(unix.IFLA_INFO_SLAVE_DATA, nil)
		data.AddRtAttr(unix.IFLA_BRPORT_MODE, bit(c.Port.Hairpin))
		data.AddRtAttr(unix.IFLA_BRPORT_ISOLATED, bit(c.Port.Isolated))
		req.AddData(info)
	}
	if err := ns.tell(req); err != nil {
		if c.NoLinkLocal && is(err, unix.EAFNOSUPPORT) { // IPv6 is off, or has no room in so small an MTU
			c.NoLinkLocal = false
			return ns.SetLink(name, c)
		}
		if is(err, unix.ENODEV) {
			err = ErrNoLink
		}
		return fmt.Errorf("set link %s: %w", name, full(err))
	}
	return nil
}

// DelLink deletes a link, and with a veth its peer. The kernel answers after a grace period, 10 ms and more;
// no other names, addresses or routes are left before that. A link that is gone is deleted.
func (ns *NS) DelLink(index int) error {
	req := newRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	if err := ns.tell(req); err != nil && !is(err, unix.ENODEV) {
		return fmt.Errorf("delete link #%d: %w", index, err)
	}
	return nil
}

// DelGroup deletes every link of a group in one grace period.
func (ns *NS) DelGroup(group uint32) error {
	req := newRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(attrU32(unix.IFLA_GROUP, group))
	if err := ns.tell(req); err != nil && !is(err, unix.ENODEV) {
		return fmt.Errorf("delete links of group %#x: %w", group, err)
	}
	return nil
}

// ID is the number that ns has for another namespace, or -1 where it has none yet.
func (ns *NS) ID(other *NS) (int, error) {
	req := newRequest(unix.RTM_GETNSID, 0)
	req.AddData(nl.NewRtGenMsg())
	req.AddData(attrU32(unix.NETNSA_FD, uint32(other.FD)))
	msgs, err := ns.Call(req, unix.RTM_NEWNSID)
	id := -1
	if err == nil && len(msgs) > 0 {
		EachAttr(msgs[0][min(4, len(msgs[0])):], func(kind uint16, v []byte) {
			if kind == unix.NETNSA_NSID {
				id = int(int32(u32(v)))
			}
		})
	}
	return id, err
}

func bit(on bool) []byte {
	if on {
		return []byte{1}
	}
	return []byte{0}
}
