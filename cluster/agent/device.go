package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/overlay"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
)

// ensureDevices makes the devices of the uplinks with the node's own addresses, and the host forward packets.
func (a *Agent) ensureDevices(ctx context.Context, self directory.Node, ups []uplink) error {
	now := new(links)
	defer a.links.Store(now)
	for _, up := range ups {
		now.all = now.all || !up.attached()
		now.uplinks = append(now.uplinks, up.index)
		index, err := a.ensureDevice(ctx, self, up)
		if err != nil {
			now.all = true
			return err
		}
		now.devices = append(now.devices, index)
	}
	return nil
}

func (a *Agent) ensureDevice(ctx context.Context, self directory.Node, up uplink) (index int, err error) {
	name := a.device(up)
	p := plan.Plan{overlay.Device{Name: name, ID: a.ID, Port: a.Port, Local: up.addr,
		MAC: overlay.MAC(a.Cluster, a.Node), MTU: up.mtu}}
	var prefixes []netip.Prefix
	for _, src := range own(self) {
		prefix := netip.PrefixFrom(src, src.BitLen())
		prefixes = append(prefixes, prefix)
		p = append(p, addr.Addr{Where: resource.Host, Link: name, Prefix: prefix, NoDAD: true},
			sysctl.Forwarding{V6: src.Is6()})
	}
	for _, r := range p {
		changed, err := r.Ensure(ctx, a.World)
		if err != nil {
			return 0, err
		}
		if changed {
			a.Log.Info("made as it should be", "what", r.String())
		}
	}
	index, err = rtnl.IndexOf(a.World.Host, name)
	if err != nil {
		return 0, err
	}
	return index, errors.Join(a.setChecksums(name), a.dropAddresses(index, prefixes))
}

// dropDevices removes a device that no peer uses any more.
func (a *Agent) dropDevices(ctx context.Context, used []uplink) error {
	for _, like := range families() {
		name := a.device(uplink{addr: like})
		if slices.Contains(a.names(used), name) {
			continue
		}
		if err := (overlay.Device{Name: name}).Remove(ctx, a.World); err != nil {
			return err
		}
	}
	return nil
}

// ensureMasquerade keeps packets to containers of all nodes from being masqueraded.
func (a *Agent) ensureMasquerade(ctx context.Context, nodes []directory.Node) error {
	n := masquerade.Nodes{Network: a.Network, Prefixes: prefixesOf(nodes)}
	changed, err := n.Ensure(ctx, a.World)
	if changed {
		a.Log.Info("made the sets of all nodes' containers as they should be", "prefixes", len(n.Prefixes))
	}
	return err
}

// prefixesOf returns the prefixes of all containers.
func prefixesOf(nodes []directory.Node) (prefixes []netip.Prefix) {
	for _, n := range nodes {
		prefixes = append(prefixes, n.Prefixes...)
	}
	return prefixes
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
