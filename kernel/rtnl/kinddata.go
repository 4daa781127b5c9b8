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
			switch {
			case attr == unix.IFLA_MACVLAN_MODE:
				l.Data.Mode = netlink.U32(v)
			case attr == unix.IFLA_MACVLAN_FLAGS && len(v) >= 2:
				l.Data.Flags = netlink.U16(v)
			case attr == unix.IFLA_MACVLAN_BC_QUEUE_LEN:
				l.Data.BCQueueLen = netlink.U32(v)
			}
		case "ipvlan":
			switch {
			case attr == unix.IFLA_IPVLAN_MODE && len(v) >= 2:
				l.Data.Mode = uint32(netlink.U16(v))
			case attr == unix.IFLA_IPVLAN_FLAGS && len(v) >= 2:
				l.Data.Flags = netlink.U16(v)
			}
		case "vlan":
			switch {
			case attr == unix.IFLA_VLAN_ID && len(v) >= 2:
				l.Data.VLAN = netlink.U16(v)
			case attr == unix.IFLA_VLAN_PROTOCOL && len(v) >= 2:
				l.Data.Protocol = uint16(v[0])<<8 | uint16(v[1])
			case attr == unix.IFLA_VLAN_FLAGS && len(v) >= 2:
				l.Data.Flags = netlink.U16(v)
			}
		case "tun":
			l.Data.Tun.set(attr, v)
		case "vxlan":
			l.Data.VXLAN.set(attr, v)
		case "bridge":
			switch {
			case attr == unix.IFLA_BR_VLAN_FILTERING && len(v) > 0:
				l.Data.Filtering = v[0] != 0
			case attr == unix.IFLA_BR_VLAN_DEFAULT_PVID && len(v) >= 2:
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
	on := len(v) > 0 && v[0] != 0
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
		d.PacketInfo = on
	case tunVNetHdr:
		d.VNetHeader = on
	case tunPersist:
		d.Persist = on
	case tunMultiQueue:
		d.MultiQueue = on
	}
}
