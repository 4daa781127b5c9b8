package link

import (
	"bytes"
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

// look returns the index of the port, or 0 if it is no port of a bridge of the kernel, and the addresses that are
// pinned to ports of its bridge.
func (p PinnedMAC) look(w *kernel.World) (port int, pinned []rtnl.PinnedMAC, err error) {
	var l *rtnl.Link
	if p.Port == "" {
		l, err = resource.HostEnd(w, p.Owner.IfName)
	} else {
		l, err = rtnl.LinkByName(w.Host, p.Port)
	}
	if err != nil || l == nil || l.Port == nil {
		return 0, nil, err
	}
	pinned, err = rtnl.PinnedMACs(w.Host, l.Master)
	return l.Index, pinned, err
}

// Ensure implements plan.Resource. An address that is pinned to another port stays there: two containers have it.
func (p PinnedMAC) Ensure(_ context.Context, w *kernel.World) (changed bool, err error) {
	port, pinned, err := p.look(w)
	isPinned := func(o rtnl.PinnedMAC) bool { return bytes.Equal(o.MAC, p.MAC) }
	if err != nil || port == 0 || slices.ContainsFunc(pinned, isPinned) {
		return false, err
	}
	return true, rtnl.PinMAC(w.Host, rtnl.PinnedMAC{MAC: p.MAC, Port: port})
}

// Verify implements plan.Resource. A later plugin may have given the container another address than the pinned one.
func (p PinnedMAC) Verify(_ context.Context, w *kernel.World) error {
	port, pinned, err := p.look(w)
	isPinned := func(o rtnl.PinnedMAC) bool { return bytes.Equal(o.MAC, p.MAC) || o.Port == port }
	if err != nil || port == 0 || slices.ContainsFunc(pinned, isPinned) {
		return err
	}
	var d resource.Drift
	d.Add(spec.Missing(""))
	return d.Err()
}
