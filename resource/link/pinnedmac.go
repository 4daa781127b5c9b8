package link

import (
	"context"
	"net"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A PinnedMAC keeps a container's MAC address behind the container's port of a bridge. Otherwise another container
// could send a frame from the address, and the bridge would then send it what is for this one. The kernel removes the
// entry with the port.
//
// Other addresses may move between ports: virtual ones (VRRP), and those of containers behind a container.
type PinnedMAC struct {
	Owner spec.Owner
	Port  string // the host end; empty: that of the container's veth
	MAC   net.HardwareAddr
}

func (p PinnedMAC) String() string {
	return resource.Line("fdb "+p.MAC.String(), resource.Opt("dev", p.Port), "master static sticky")
}

// Traits implements resource.Describer.
func (p PinnedMAC) Traits() resource.Traits {
	return resource.Traits{Fix: p.Ensure, On: resource.Iface{Where: resource.Host, Name: p.Port}}
}

// look returns the port, or nil if the host has none, or if it belongs to another switch than a bridge. Pinned is the
// index of the port that the address is pinned to, or 0.
func (p PinnedMAC) look(w *kernel.World) (port *rtnl.Link, pinned int, err error) {
	if p.Port == "" {
		port, err = resource.HostEnd(w, p.Owner.IfName)
	} else {
		port, err = rtnl.LinkByName(w.Host, p.Port)
	}
	switch {
	case err != nil || port == nil || port.Master == 0:
		return port, 0, err
	case port.Port == nil:
		return nil, 0, nil
	}
	pinned, err = rtnl.PinnedPort(w.Host, port.Master, p.MAC)
	return port, pinned, err
}

// Ensure implements plan.Resource. An address that is pinned to another port stays there: two containers have it.
func (p PinnedMAC) Ensure(_ context.Context, w *kernel.World) (changed bool, err error) {
	port, pinned, err := p.look(w)
	if err != nil || port == nil || port.Master == 0 || pinned != 0 {
		return false, err
	}
	return true, rtnl.PinMAC(w.Host, rtnl.PinnedMAC{MAC: p.MAC, Port: port.Index})
}

// Verify implements plan.Resource. A later plugin may have given the container another address than the pinned one.
func (p PinnedMAC) Verify(_ context.Context, w *kernel.World) error {
	port, pinned, err := p.look(w)
	if err != nil || port == nil || pinned != 0 {
		return err
	}
	if port.Master != 0 {
		all, err := rtnl.PinnedMACs(w.Host, port.Master)
		other := func(o rtnl.PinnedMAC) bool { return o.Port == port.Index }
		if err != nil || slices.ContainsFunc(all, other) {
			return err
		}
	}
	var d resource.Drift
	d.Add(spec.Missing(""))
	return d.Err()
}
