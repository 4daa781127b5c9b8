package rtnl

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A VXLAN is what the kernel has of a link of kind vxlan beyond other links.
type VXLAN struct {
	ID       uint32     // the network identifier, 24 bits
	Port     uint16     // UDP port, here and at the other ends
	Local    netip.Addr // the outer source; its family is that of all ends
	Learning bool       // MAC addresses are learnt from packets
}

// Add writes v as the data of a new link.
func (v VXLAN) Add(data *nl.RtAttr) {
	learning := []byte{0}
	if v.Learning {
		learning[0] = 1
	}
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(v.ID))
	addLocal(data, v.Local)
	data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, learning)
	data.AddRtAttr(nl.IFLA_VXLAN_PORT, []byte{byte(v.Port >> 8), byte(v.Port)})
}

func addLocal(data *nl.RtAttr, local netip.Addr) {
	attr := nl.IFLA_VXLAN_LOCAL6
	if local.Is4() {
		attr = nl.IFLA_VXLAN_LOCAL
	}
	data.AddRtAttr(attr, local.AsSlice())
}

// SetVXLANLocal changes the outer source of a VXLAN to another address of its family. Its forwarding entries and the
// routes by it stay.
func SetVXLANLocal(ns *kernel.NS, name string, local netip.Addr) error {
	req := LinkChange{}.request(name)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte("vxlan"))
	addLocal(info.AddRtAttr(unix.IFLA_INFO_DATA, nil), local)
	req.AddData(info)
	if err := Tell(ns, req); err != nil {
		return fmt.Errorf("set link %s local %v: %w", name, local, err)
	}
	return nil
}

// set takes one attribute.
func (v *VXLAN) set(attr uint16, b []byte) {
	switch attr {
	case nl.IFLA_VXLAN_ID:
		v.ID = netlink.U32(b)
	case nl.IFLA_VXLAN_LOCAL, nl.IFLA_VXLAN_LOCAL6:
		v.Local, _ = netip.AddrFromSlice(b)
	case nl.IFLA_VXLAN_LEARNING:
		v.Learning = len(b) > 0 && b[0] != 0
	case nl.IFLA_VXLAN_PORT:
		if len(b) >= 2 {
			v.Port = uint16(b[0])<<8 | uint16(b[1])
		}
	}
}

// ForwardingTable is the family of entries of forwarding tables among NeighbourMessages. The Addr of such a Neighbour
// is the outer destination of packets for its MAC.
const ForwardingTable = unix.AF_BRIDGE

// NewForwarding returns the message for a permanent entry of a VXLAN's forwarding table, as bridge(8) makes it with
// "self".
func NewForwarding(link int, mac net.HardwareAddr, dst netip.Addr) Message {
	m := NewNeighbour(nil, Neighbour{Addr: dst, MAC: mac, Link: link, State: Permanent})
	m.Body[0] = ForwardingTable
	m.Body[10] = unix.NTF_SELF
	return m
}
