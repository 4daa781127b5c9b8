package rtnl

import (
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
)

// An IFB describes a link for AddIFB. Incoming packets can be redirected through it to limit their rate.
type IFB struct {
	Name  string
	MAC   net.HardwareAddr
	MTU   int
	Group uint32
	Alias string
}

// AddIFB creates an ifb and sets it up. It gets no IPv6 address, because no program communicates through it.
func AddIFB(ns *kernel.NS, i IFB) error {
	if err := AddLink(ns, NewLink{Name: i.Name, Kind: "ifb", MAC: i.MAC, MTU: i.MTU, Group: i.Group,
		Queues: 1}); err != nil {
		return err
	}
	// The kernel sets a link up before it reads how IPv6 is to name it, so that takes two messages.
	if err := SetLink(ns, i.Name, LinkChange{Alias: i.Alias, NoLinkLocal: true}); err != nil {
		return err
	}
	return SetLink(ns, i.Name, LinkChange{Up: true})
}
