package rtnl

import (
	"bytes"
	"fmt"
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/netlink"
	"golang.org/x/sys/unix"
)

const sticky = 0x40 // NTF_STICKY of linux/neighbour.h

// A PinnedMAC is a MAC address that a bridge expects behind one port, "bridge fdb … static sticky" of bridge(8). A
// frame from the address that comes by another port changes nothing. The address goes with its port.
type PinnedMAC struct {
	MAC  net.HardwareAddr
	Port int // index
}

// PinnedPort returns the index of the port of a bridge that an address is pinned to, or 0. It is one message, however
// many addresses the bridge knows.
func PinnedPort(ns *kernel.NS, bridge int, mac net.HardwareAddr) (port int, err error) {
	req := newRequest(unix.RTM_GETNEIGH, 0, unix.NdMsg{Family: unix.AF_BRIDGE})
	req.Host32(unix.NDA_MASTER, uint32(bridge))
	req.Attr(unix.NDA_LLADDR, mac...)
	msgs, err := Call(ns, req, unix.RTM_NEWNEIGH)
	if netlink.Is(err, unix.ENOENT) { // the bridge does not know the address
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for the MAC address %v on a bridge: %w", mac, err)
	}
	if pinned := pinnedIn(msgs); len(pinned) > 0 {
		port = pinned[0].Port
	}
	return port, nil
}

// PinnedMACs returns the addresses that are pinned to ports of a bridge.
func PinnedMACs(ns *kernel.NS, bridge int) ([]PinnedMAC, error) {
	msgs, err := forwarding(ns, bridge)
	return pinnedIn(msgs), err
}

func pinnedIn(msgs [][]byte) (list []PinnedMAC) {
	for _, b := range msgs {
		if len(b) >= sizeofNdMsg && b[10]&sticky != 0 {
			n := Message{unix.RTM_NEWNEIGH, b}.Neighbour()
			list = append(list, PinnedMAC{n.MAC, n.Link})
		}
	}
	return list
}

// PinMAC pins an address to a port, in all its VLANs. What the bridge has learnt of the address does not count any
// more.
func PinMAC(ns *kernel.NS, p PinnedMAC) error {
	entry := unix.NdMsg{
		Family: unix.AF_BRIDGE, Ifindex: int32(p.Port), State: unix.NUD_NOARP, Flags: unix.NTF_MASTER | sticky,
	}
	req := newRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK, entry)
	req.Attr(unix.NDA_LLADDR, p.MAC...)
	return netlink.About(Tell(ns, req), "pin the MAC address %v to its port", p.MAC)
}

// PortOf returns the index of the port behind which a bridge has learned a MAC address. It returns 0 if the bridge
// does not know the address.
func PortOf(ns *kernel.NS, bridge int, mac net.HardwareAddr) (port int, err error) {
	msgs, err := forwarding(ns, bridge)
	for _, b := range msgs {
		m := Message{unix.RTM_NEWNEIGH, b}
		if n := m.Neighbour(); bytes.Equal(n.MAC, mac) && n.Link != bridge {
			port = n.Link
		}
	}
	return port, err
}

// forwarding returns the messages of a bridge's forwarding database.
func forwarding(ns *kernel.NS, bridge int) ([][]byte, error) {
	req := newRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP, unix.NdMsg{Family: unix.AF_BRIDGE})
	req.Host32(unix.NDA_MASTER, uint32(bridge))
	msgs, err := Dump(ns, req, unix.RTM_NEWNEIGH)
	return msgs, netlink.About(err, "list the MAC addresses of a bridge")
}
