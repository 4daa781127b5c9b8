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
	"github.com/fairlead-cni/fairlead/spec"
)

// ensureDevices makes the devices of the uplinks with the node's own addresses, and the host forward packets. It returns
// what differed of the keys and peers of WireGuard.
func (a *Agent) ensureDevices(ctx context.Context, self directory.Node, ups []uplink, nodes []directory.Node,
	peers []overlay.Peer) (found spec.Differences, err error) {
	now := new(links)
	defer a.links.Store(now)
	for _, up := range ups {
		now.all = now.all || !up.attached()
		now.uplinks = append(now.uplinks, up.index)
	}
	for _, d := range a.devices(ups) {
		index, err := a.ensureDevice(ctx, self, d)
		if err != nil {
			now.all = true
			return nil, err
		}
		now.devices = append(now.devices, index)
	}
	if a.Mode != WireGuard {
		return nil, nil
	}
	return a.wireguard(nodes, peers).Sync(a.World.Host)
}

// A device is one of the node's ends of tunnels.
type device struct {
	name string
	mtu  int
	is   plan.Resource
}

// devices returns the devices of the uplinks: one of VXLAN for each family, or one of WireGuard.
func (a *Agent) devices(ups []uplink) (list []device) {
	if a.Mode == WireGuard {
		name, mtu := a.Tunnel.Device, a.leastMTU(ups)
		return []device{{name, mtu, overlay.WireGuardLink{Name: name, MTU: mtu}}}
	}
	for _, up := range ups {
		name := a.device(up)
		list = append(list, device{name, up.mtu, overlay.Device{Name: name, ID: a.ID, Port: a.Port, Local: up.addr,
			MAC: overlay.MAC(a.Cluster, a.Node), MTU: up.mtu}})
	}
	return list
}

// ensureDevice makes a device with the node's own addresses.
func (a *Agent) ensureDevice(ctx context.Context, self directory.Node, d device) (index int, err error) {
	name, p := d.name, plan.Plan{d.is}
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
	if a.Mode != WireGuard { // which has no card compute the checksums of what it encrypts
		err = a.setChecksums(name)
	}
	return index, errors.Join(err, a.dropAddresses(index, prefixes))
}

// deviceNames returns the names of all devices that the node may have, in any mode.
func (a *Agent) deviceNames() []string {
	names := []string{a.Tunnel.Device}
	for _, like := range families() {
		names = append(names, a.device(uplink{addr: like}))
	}
	return names
}

// dropDevices removes the devices that no peer uses any more.
func (a *Agent) dropDevices(ctx context.Context, used []device) error {
	for _, name := range a.deviceNames() {
		isUsed := slices.ContainsFunc(used, func(d device) bool { return d.name == name })
		if isUsed || name == "" {
			continue
		}
		if err := (overlay.WireGuardLink{Name: name}).Remove(ctx, a.World); err != nil { // of either kind
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
