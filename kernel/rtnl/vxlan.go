package rtnl

import (
	"net"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
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
func (v VXLAN) Add(data *netlink.Buffer) {
	data.Host32(unix.IFLA_VXLAN_ID, v.ID)
	addLocal(data, v.Local)
	data.Bool(unix.IFLA_VXLAN_LEARNING, v.Learning)
	data.Attr(unix.IFLA_VXLAN_PORT, byte(v.Port>>8), byte(v.Port))
}

func addLocal(data *netlink.Buffer, local netip.Addr) {
	var attr uint16 = unix.IFLA_VXLAN_LOCAL6
	if local.Is4() {
		attr = unix.IFLA_VXLAN_LOCAL
	}
	data.Attr(attr, local.AsSlice()...)
}

// SetVXLANLocal changes the outer source of a VXLAN to another address of its family. Its forwarding entries and the
// routes by it stay.
func SetVXLANLocal(ns *kernel.NS, name string, local netip.Addr) error {
	req := LinkChange{}.request(unix.IfInfomsg{}, name)
	linkInfo(req, "vxlan", func(data *netlink.Buffer) { addLocal(data, local) })
	return netlink.About(Tell(ns, req), "set link %s local %v", name, local)
}

// set takes one attribute.
func (v *VXLAN) set(attr uint16, b []byte) {
	switch attr {
	case unix.IFLA_VXLAN_ID:
		v.ID = netlink.U32(b)
	case unix.IFLA_VXLAN_LOCAL, unix.IFLA_VXLAN_LOCAL6:
		v.Local, _ = netip.AddrFromSlice(b)
	case unix.IFLA_VXLAN_LEARNING:
		v.Learning = netlink.On(b)
	case unix.IFLA_VXLAN_PORT:
		v.Port = netlink.Net16(b)
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
