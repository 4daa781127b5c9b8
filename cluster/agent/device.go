package agent

import (
	"context"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/overlay"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
)

// ensureDevice makes the device with the node's own addresses, and the host forward packets.
func (a *Agent) ensureDevice(ctx context.Context, self directory.Node, up uplink) error {
	p := plan.Plan{overlay.Device{Name: a.Device, ID: a.ID, Port: a.Port, Local: up.addr,
		MAC: overlay.MAC(a.Cluster, a.Node), MTU: up.mtu}}
	var prefixes []netip.Prefix
	for _, src := range own(self) {
		prefix := netip.PrefixFrom(src, src.BitLen())
		prefixes = append(prefixes, prefix)
		p = append(p, addr.Addr{Where: resource.Host, Link: a.Device, Prefix: prefix, NoDAD: true},
			sysctl.Forwarding{V6: src.Is6()})
	}
	for _, r := range p {
		changed, err := r.Ensure(ctx, a.World)
		if err != nil {
			return err
		}
		if changed {
			a.Log.Info("made as it should be", "what", r.String())
		}
	}
	index, err := rtnl.IndexOf(a.World.Host, a.Device)
	if err != nil {
		return err
	}
	a.index.Store(int64(index))
	return a.dropAddresses(index, prefixes)
}

// dropAddresses removes the addresses of a former range from the device.
func (a *Agent) dropAddresses(index int, keep []netip.Prefix) error {
	have, err := rtnl.Addrs(a.World.Host, index)
	if err != nil {
		return err
	}
	for _, h := range have {
		if h.Prefix.Addr().IsLinkLocalUnicast() || slices.Contains(keep, h.Prefix) {
			continue
		}
		if err := rtnl.DelAddr(a.World.Host, index, h); err != nil {
			return err
		}
	}
	return nil
}
