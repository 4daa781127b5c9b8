package rtnl

import "github.com/fairlead-cni/fairlead/kernel"

// AddIFB creates a link of kind ifb and sets it up. Incoming packets can be redirected through it to limit their rate.
// It gets no IPv6 address, because no program communicates through it.
func AddIFB(ns *kernel.NS, l NewLink) error {
	alias := l.Alias
	l.Kind, l.Queues, l.Alias = "ifb", 1, ""
	if err := AddLink(ns, l); err != nil {
		return err
	}
	// The kernel sets a link up before it reads how IPv6 is to name it, so that takes two messages.
	if err := SetLink(ns, l.Name, LinkChange{Alias: alias, NoLinkLocal: true}); err != nil {
		return err
	}
	return SetLink(ns, l.Name, LinkChange{Up: true})
}
