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
	oneQueue := func(b *netlink.Buffer) { // with more than one the kernel waits for a grace period at each end
		b.Host32(unix.IFLA_NUM_TX_QUEUES, 1)
		b.Host32(unix.IFLA_NUM_RX_QUEUES, 1)
	}
	host := LinkChange{Up: true, MAC: v.HostMAC, MTU: v.MTU, Group: &v.Group, Master: v.Master}
	req := host.request(unix.IfInfomsg{}, v.Host)
	req.Flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	oneQueue(&req.Buffer)
	linkInfo(req, "veth", func(b *netlink.Buffer) {
		b.Nest(vethPeer, func() {
			*b = append(*b, netlink.Struct(unix.IfInfomsg{})...)
			LinkChange{MAC: v.MAC, MTU: v.MTU, To: v.NS}.put(b, v.Name)
			oneQueue(b)
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
	req := LinkChange{MAC: mac, MTU: mtu}.request(unix.IfInfomsg{}, name)
	req.Flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	var data func(*netlink.Buffer)
	if vlans {
		data = func(b *netlink.Buffer) { b.Bool(unix.IFLA_BR_VLAN_FILTERING, true) }
	}
	linkInfo(req, "bridge", data)
	err := Tell(ns, req)
	if vlans {
		err = vlanError(err)
	}
	return err
}
