package kernel

import "net"

// An IFB is what AddIFB makes: a link that packets can be sent through on their way in.
type IFB struct {
	Name  string
	MAC   net.HardwareAddr
	MTU   int
	Group uint32
	Alias string
}

// AddIFB makes an ifb and sets it up. It gets no address of its own: nobody talks by it.
func (ns *NS) AddIFB(i IFB) error {
	if err := ns.AddLink(NewLink{Name: i.Name, Kind: "ifb", MAC: i.MAC, MTU: i.MTU, Group: i.Group,
		Queues: 1}); err != nil {
		return err
	}
	// The kernel sets a link up before it reads how IPv6 is to name it, so that takes two messages.
	if err := ns.SetLink(i.Name, LinkChange{Alias: i.Alias, NoLinkLocal: true}); err != nil {
		return err
	}
	return ns.SetLink(i.Name, LinkChange{Up: true})
}
