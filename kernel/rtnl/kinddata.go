package rtnl

import (
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A KindData is what some kinds of links have beyond other links. Only the fields of the link's kind are set.
type KindData struct {
	Mode       uint32 // macvlan, macvtap, ipvlan
	Flags      uint16 // the same, and vlan
	BCQueueLen uint32 // macvlan, macvtap: what was asked for (Linux 5.11)
	VLAN       uint16 // vlan: its number
	Protocol   uint16 // vlan: 0x8100, or 0x88a8 for 802.1ad
	Table      uint32 // vrf
	Filtering  bool   // bridge: keeps VLANs apart
	PVID       uint16 // bridge: the VLAN that new ports are in
	Tun        *TunData
	VXLAN      *VXLAN
}

// parseData reads IFLA_INFO_DATA. The attribute with the kind, which says how its own are numbered, comes before.
func (l *Link) parseData(b []byte) {
	switch l.Kind {
	case "tun":
		l.Data.Tun = &TunData{}
	case "vxlan":
		l.Data.VXLAN = &VXLAN{}
	}
	netlink.EachAttr(b, func(attr uint16, v []byte) {
		switch l.Kind {
		case "macvlan", "macvtap":
			switch attr {
			case unix.IFLA_MACVLAN_MODE:
				l.Data.Mode = netlink.U32(v)
			case unix.IFLA_MACVLAN_FLAGS:
				l.Data.Flags = netlink.U16(v)
			case unix.IFLA_MACVLAN_BC_QUEUE_LEN:
				l.Data.BCQueueLen = netlink.U32(v)
			}
		case "ipvlan":
			switch attr {
			case unix.IFLA_IPVLAN_MODE:
				l.Data.Mode = uint32(netlink.U16(v))
			case unix.IFLA_IPVLAN_FLAGS:
				l.Data.Flags = netlink.U16(v)
			}
		case "vlan":
			switch attr {
			case unix.IFLA_VLAN_ID:
				l.Data.VLAN = netlink.U16(v)
			case unix.IFLA_VLAN_PROTOCOL:
				l.Data.Protocol = netlink.Net16(v)
			case unix.IFLA_VLAN_FLAGS:
				l.Data.Flags = netlink.U16(v)
			}
		case "tun":
			l.Data.Tun.set(attr, v)
		case "vxlan":
			l.Data.VXLAN.set(attr, v)
		case "bridge":
			switch attr {
			case unix.IFLA_BR_VLAN_FILTERING:
				l.Data.Filtering = netlink.On(v)
			case unix.IFLA_BR_VLAN_DEFAULT_PVID:
				l.Data.PVID = netlink.U16(v)
			}
		case "vrf":
			if attr == unix.IFLA_VRF_TABLE {
				l.Data.Table = netlink.U32(v)
			}
		}
	})
}

// TunData is what the kernel tells about a link of kind tun (Linux 4.20).
type TunData struct {
	Tap          bool // it carries frames, not packets
	Owner, Group *uint32
	MultiQueue   bool
	PacketInfo   bool // each frame comes with its flags and protocol
	VNetHeader   bool // each frame comes with the header of virtio
	Persist      bool
}

// The attributes of a tun link, and IFF_TAP among the types.
const (
	tunOwner = 1 + iota
	tunGroup
	tunType
	tunPI
	tunVNetHdr
	tunPersist
	tunMultiQueue
)

// set takes one attribute.
func (d *TunData) set(attr uint16, v []byte) {
	switch attr {
	case tunOwner, tunGroup:
		id := netlink.U32(v)
		if attr == tunOwner {
			d.Owner = &id
		} else {
			d.Group = &id
		}
	case tunType:
		d.Tap = len(v) > 0 && v[0] == unix.IFF_TAP
	case tunPI:
		d.PacketInfo = netlink.On(v)
	case tunVNetHdr:
		d.VNetHeader = netlink.On(v)
	case tunPersist:
		d.Persist = netlink.On(v)
	case tunMultiQueue:
		d.MultiQueue = netlink.On(v)
	}
}
