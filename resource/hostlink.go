package resource

import (
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// A HostLink is a link on the host, with what the kernel tells about it.
type HostLink struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`             // ip(8)'s type: veth, tun, bridge, …
	Master string `json:"master,omitempty"` // the bridge it is a port of; empty: none
	Was    string `json:"was,omitempty"`    // the name that a result lists it by, where it was renamed since

	// OtherNetns is set for one end of a veth pair whose other end is neither on the host nor in the container.
	OtherNetns bool `json:"elsewhere,omitempty"`

	// Beside is set for one end of a veth pair whose other end is another interface of the container.
	Beside bool `json:"beside,omitempty"`
}

// Look returns the link of that name on the host, as one that may lead to the interface ifname of the container. It
// returns nil without an error if there is none.
func Look(w *kernel.World, name, ifname string) (*HostLink, error) {
	l, err := rtnl.LinkByName(w.Host, name)
	if err != nil {
		return nil, ExceptNoLink(err)
	}
	h, err := seen(w, l)
	if h == nil || err != nil || h.OtherNetns || l.Kind != "veth" || !l.PeerAway || w.Container == nil {
		return h, err
	}
	index, err := rtnl.IndexOf(w.Container, ifname)
	h.Beside = err == nil && index != l.Peer
	return h, ExceptNoLink(err)
}

// LookBehind returns the host-side interface of the container's veth pair. It returns nil without an error if there
// is none.
func LookBehind(w *kernel.World, ifname string) (*HostLink, error) {
	l, err := HostEnd(w, ifname)
	if l == nil || err != nil {
		return nil, err
	}
	return seen(w, l)
}

func seen(w *kernel.World, l *rtnl.Link) (*HostLink, error) {
	h := &HostLink{Name: l.Name, Kind: l.Kind}
	if l.Master != 0 {
		m, err := rtnl.LinkByIndex(w.Host, l.Master)
		if err != nil {
			return nil, ExceptNoLink(err)
		}
		h.Master = m.Name
	}
	if l.Kind == "veth" && l.PeerAway && w.Container != nil {
		here, err := rtnl.NSID(w.Host, w.Container)
		if err != nil {
			return nil, err
		}
		h.OtherNetns = here < 0 || l.PeerNS != here
	}
	return h, nil
}

// SwitchRecord is the kind of the records of ports of Open vSwitch. The kernel does not say which bridge of Open
// vSwitch a link is a port of.
const SwitchRecord = "ovs"

// SwitchOf returns the bridge of Open vSwitch whose internal port has the container's packets without a VLAN, by what
// ADD recorded. It returns "" if there is none.
func SwitchOf(w *kernel.World, o spec.Owner) (bridge string, err error) {
	var port struct{ Bridge string }
	_, err = w.Store.Get(SwitchRecord, o, &port)
	return port.Bridge, err
}

// HostEnd returns the host-side interface of the container's veth pair. It returns nil without an error if there is
// none. Link indexes are unique only within a namespace. So HostEnd also checks that the peer's namespace is the
// host's.
func HostEnd(w *kernel.World, ifname string) (*rtnl.Link, error) {
	if w.Container == nil {
		return nil, nil
	}
	l, err := rtnl.LinkByName(w.Container, ifname)
	if err != nil || l.Kind != "veth" {
		return nil, ExceptNoLink(err)
	}
	if !l.PeerAway {
		if same, err := kernel.Same(w.Host, w.Container); err != nil || !same {
			return nil, err
		}
	} else {
		if host, err := rtnl.NSID(w.Container, w.Host); err != nil || host < 0 || host != l.PeerNS {
			return nil, err
		}
	}
	h, err := rtnl.LinkByIndex(w.Host, l.Peer)
	if err != nil {
		return nil, ExceptNoLink(err)
	}
	return h, nil
}
