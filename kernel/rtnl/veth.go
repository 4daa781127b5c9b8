package rtnl

import (
	"fmt"
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"github.com/vishvananda/netlink/nl"
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

// AddVeth creates a veth pair in one message. Both ends get their names and namespaces at once. The end in this
// namespace is a port of its bridge and up. The other end stays down, because the veth driver cannot create it up. So
// no packet passes until the caller sets it up.
func AddVeth(ns *kernel.NS, v VethPair) error {
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	req.AddData(msg)
	end := func(name string, mac net.HardwareAddr, add func(*nl.RtAttr)) {
		add(AttrText(unix.IFLA_IFNAME, name))
		if mac != nil {
			add(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
		}
		if v.MTU > 0 {
			add(attrU32(unix.IFLA_MTU, uint32(v.MTU)))
		}
		// With more than one queue the kernel waits for a grace period at each end.
		add(attrU32(unix.IFLA_NUM_TX_QUEUES, 1))
		add(attrU32(unix.IFLA_NUM_RX_QUEUES, 1))
	}
	end(v.Host, v.HostMAC, func(a *nl.RtAttr) { req.AddData(a) })
	req.AddData(attrU32(unix.IFLA_GROUP, v.Group))
	if v.Master != 0 {
		req.AddData(attrU32(unix.IFLA_MASTER, uint32(v.Master)))
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte("veth"))
	peer := info.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	end(v.Name, v.MAC, func(a *nl.RtAttr) { peer.AddChild(a) })
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(v.NS.FD)))
	req.AddData(info)
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
	req := newRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(AttrText(unix.IFLA_IFNAME, name))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	if mtu > 0 {
		req.AddData(attrU32(unix.IFLA_MTU, uint32(mtu)))
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte("bridge"))
	if vlans {
		info.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_BR_VLAN_FILTERING, bit(true))
	}
	req.AddData(info)
	err := Tell(ns, req)
	if vlans && netlink.Is(err, unix.EOPNOTSUPP) {
		err = ErrNoBridgeVLANs
	}
	return err
}
