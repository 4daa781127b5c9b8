package rtnl

import (
	"errors"
	"math"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoBridgeVLANs means that the kernel was built without VLANs on bridges (CONFIG_BRIDGE_VLAN_FILTERING).
var ErrNoBridgeVLANs = errors.New("the kernel has no VLANs on bridges (CONFIG_BRIDGE_VLAN_FILTERING)")

// A PortVLAN is a range of VLANs, First to Last, that a bridge port is a member of. Untagged frames that come in
// belong to the VLAN with PVID, which is a single VLAN. Frames that go out in a VLAN with Untagged lose their tag.
type PortVLAN struct {
	First, Last    uint16
	PVID, Untagged bool
}

const (
	vlanEntry      = 1 // BRIDGE_VLANDB_ENTRY
	vlanEntryInfo  = 1 // BRIDGE_VLANDB_ENTRY_INFO
	vlanEntryRange = 2 // BRIDGE_VLANDB_ENTRY_RANGE
	sizeofVLANMsg  = 8 // struct br_vlan_msg
	sizeofVLANInfo = 4 // struct bridge_vlan_info
)

// A vlanMsg is struct br_vlan_msg.
type vlanMsg struct {
	Family uint8
	_      [3]uint8
	Index  uint32 // of the port
}

const vlanInfo = 2 // IFLA_BRIDGE_VLAN_INFO

// The flags of struct bridge_vlan_info.
const (
	vlanPVID       = 1 << 1 // BRIDGE_VLAN_INFO_PVID
	vlanUntagged   = 1 << 2 // BRIDGE_VLAN_INFO_UNTAGGED
	vlanRangeBegin = 1 << 3 // BRIDGE_VLAN_INFO_RANGE_BEGIN
	vlanRangeEnd   = 1 << 4 // BRIDGE_VLAN_INFO_RANGE_END
)

// PortVLANs returns the VLANs of one bridge port, in order (Linux 5.6). The dump that ip(8) uses would return those
// of every port of every bridge.
func PortVLANs(ns *kernel.NS, index int) ([]PortVLAN, error) {
	req := newRequest(unix.RTM_GETVLAN, unix.NLM_F_DUMP, vlanMsg{Family: unix.AF_BRIDGE, Index: uint32(index)})
	msgs, err := Dump(ns, req, unix.RTM_NEWVLAN)
	if err != nil {
		return nil, netlink.About(vlanError(err), "list VLANs of port #%d", index)
	}
	var list []PortVLAN
	for _, m := range msgs {
		if len(m) < sizeofVLANMsg || netlink.U32(m[4:]) != uint32(index) {
			continue
		}
		netlink.EachAttr(m[sizeofVLANMsg:], func(kind uint16, v []byte) {
			if kind == vlanEntry {
				list = append(list, parsePortVLAN(v))
			}
		})
	}
	return list, nil
}

// vlanError says what the kernel's error number means for VLANs of a bridge.
func vlanError(err error) error {
	if netlink.Is(err, unix.EOPNOTSUPP) {
		return ErrNoBridgeVLANs
	}
	return err
}

func parsePortVLAN(b []byte) (v PortVLAN) {
	netlink.EachAttr(b, func(kind uint16, b []byte) {
		switch {
		case kind == vlanEntryInfo && len(b) >= sizeofVLANInfo:
			flags := netlink.U16(b)
			v.PVID, v.Untagged = flags&vlanPVID != 0, flags&vlanUntagged != 0
			v.First = netlink.U16(b[2:])
			v.Last = max(v.Last, v.First)
		case kind == vlanEntryRange:
			v.Last = netlink.U16(b)
		}
	})
	return v
}

// NoBridgeVLANs returns nil if bridges can separate VLANs, possibly after the kernel has loaded a module. It asks
// about a port that does not exist, so it changes nothing.
func NoBridgeVLANs(ns *kernel.NS) error {
	if err := NoKind(ns, "bridge"); err != nil {
		return err
	}
	if _, err := PortVLANs(ns, math.MaxInt32); errors.Is(err, ErrNoBridgeVLANs) {
		return ErrNoBridgeVLANs
	}
	return nil
}

// AddPortVLANs makes a bridge port a member of VLANs, in one message. A VLAN that the port is in gets the new flags.
func AddPortVLANs(ns *kernel.NS, index int, list []PortVLAN) error {
	return portVLANs(ns, unix.RTM_SETLINK, "set", index, list)
}

// DelPortVLANs removes a bridge port from VLANs, in one message.
func DelPortVLANs(ns *kernel.NS, index int, list []PortVLAN) error {
	return portVLANs(ns, unix.RTM_DELLINK, "delete", index, list)
}

func portVLANs(ns *kernel.NS, typ int, what string, index int, list []PortVLAN) error {
	if len(list) == 0 {
		return nil
	}
	var ranges netlink.Buffer
	add := func(flags, id uint16) { ranges.Attr(vlanInfo, netlink.Struct([]uint16{flags, id})...) }
	for _, v := range list {
		flags := uint16(0)
		if v.PVID {
			flags |= vlanPVID
		}
		if v.Untagged {
			flags |= vlanUntagged
		}
		if v.First == v.Last {
			add(flags, v.First)
			continue
		}
		add(flags|vlanRangeBegin, v.First)
		add(flags|vlanRangeEnd, v.Last)
	}
	req := newRequest(typ, unix.NLM_F_ACK, unix.IfInfomsg{Family: unix.AF_BRIDGE, Index: int32(index)})
	req.Attr(unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, ranges...)
	return netlink.About(vlanError(Tell(ns, req)), "%s VLANs of port #%d", what, index)
}

// SetBridgeVLANFiltering makes a bridge separate VLANs. Its ports are in the default VLAN until AddPortVLANs changes
// that.
func SetBridgeVLANFiltering(ns *kernel.NS, index int) error {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK, unix.IfInfomsg{Index: int32(index)})
	linkInfo(req, "bridge", func(b *netlink.Buffer) { b.Bool(unix.IFLA_BR_VLAN_FILTERING, true) })
	return netlink.About(vlanError(Tell(ns, req)), "set vlan_filtering of bridge #%d", index)
}
