package rtnl

import (
	"fmt"
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

// A VethPair describes a veth pair for AddVeth: the end Name in namespace NS, and the end Host in this namespace.
type VethPair struct {
	Host, Name   string
	NS           *kernel.NS
	MTU          int // zero: the kernel's
	HostMAC, MAC net.HardwareAddr
	Master       int // index of a bridge here, or zero
	Group        uint32
}

const vethPeer = 1 // VETH_INFO_PEER

// AddVeth creates a veth pair in one message. Both ends get their names and namespaces at once. The end in this
// namespace is a port of its bridge and up. The other end stays down, because the veth driver cannot create it up. So
// no packet passes until the caller sets it up.
func AddVeth(ns *kernel.NS, v VethPair) error {
	up := unix.IfInfomsg{Flags: unix.IFF_UP, Change: unix.IFF_UP}
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, up)
	end := func(b *netlink.Buffer, name string, mac net.HardwareAddr) {
		b.Str(unix.IFLA_IFNAME, name)
		if mac != nil {
			b.Attr(unix.IFLA_ADDRESS, mac...)
		}
		if v.MTU > 0 {
			b.Host32(unix.IFLA_MTU, uint32(v.MTU))
		}
		// With more than one queue the kernel waits for a grace period at each end.
		b.Host32(unix.IFLA_NUM_TX_QUEUES, 1)
		b.Host32(unix.IFLA_NUM_RX_QUEUES, 1)
	}
	end(&req.Buffer, v.Host, v.HostMAC)
	req.Host32(unix.IFLA_GROUP, v.Group)
	if v.Master != 0 {
		req.Host32(unix.IFLA_MASTER, uint32(v.Master))
	}
	linkInfo(req, "veth", func(b *netlink.Buffer) {
		b.Nest(vethPeer, func() {
			*b = append(*b, netlink.Struct(unix.IfInfomsg{})...)
			end(b, v.Name, v.MAC)
			b.Host32(unix.IFLA_NET_NS_FD, uint32(v.NS.FD))
		})
	})
	return full(Tell(ns, req))
}

// full puts the number of ports beside the kernel's "exchange full".
func full(err error) error {
	if netlink.Is(err, unix.EXFULL) {
		return fmt.Errorf("the bridge is full, it takes 1023 ports: %w", err)
	}
	return err
}

// AddBridge creates a bridge that is down. With a MAC, the bridge does not take the address of a port. With vlans,
// the bridge separates VLANs.
func AddBridge(ns *kernel.NS, name string, mac net.HardwareAddr, mtu int, vlans bool) error {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, unix.IfInfomsg{})
	req.Str(unix.IFLA_IFNAME, name)
	req.Attr(unix.IFLA_ADDRESS, mac...)
	if mtu > 0 {
		req.Host32(unix.IFLA_MTU, uint32(mtu))
	}
	var data func(*netlink.Buffer)
	if vlans {
		data = func(b *netlink.Buffer) { b.Bool(unix.IFLA_BR_VLAN_FILTERING, true) }
	}
	linkInfo(req, "bridge", data)
	err := Tell(ns, req)
	if vlans && netlink.Is(err, unix.EOPNOTSUPP) {
		err = ErrNoBridgeVLANs
	}
	return err
}
