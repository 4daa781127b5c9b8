package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// An uplink is the link by which other nodes reach this one, in one family.
type uplink struct {
	addr  netip.Addr
	name  string // empty: no link has the address at present
	index int
	mtu   int // of packets between containers, in bytes; zero: unknown

	subnet netip.Prefix // other nodes in it are on the same link
}

// uplinks returns the uplink of each family that the node has an address of, that of IPv4 first. One may have no link:
// what leads by it stays until the address is back.
func (a *Agent) uplinks(self directory.Node) (ups []uplink, err error) {
	if len(self.Endpoints) == 0 {
		return nil, Missing{fmt.Sprintf("node %s has no address of the type InternalIP", self.Name),
			fmt.Sprintf("`kubectl get node %s -o wide` shows it. kubelet reports it (--node-ip).", self.Name)}
	}
	all, err := rtnl.AllAddrs(a.World.Host)
	if err != nil {
		return nil, err
	}
	for _, like := range families() {
		listed := self.Of(like)
		if len(listed) == 0 {
			continue
		}
		up, err := a.uplinkOf(listed, all)
		if err != nil {
			return nil, err
		}
		ups = append(ups, up)
	}
	if !slices.ContainsFunc(ups, uplink.attached) {
		return nil, a.noLink(self.Name, self.Endpoints...)
	}
	return ups, nil
}

// attached reports whether a link has the address.
func (up uplink) attached() bool { return up.name != "" }

// noLink says that no link has any of a node's addresses.
func (a *Agent) noLink(node string, listed ...netip.Addr) error {
	hint := "`ip addr` lists them. --node of fairlead-agent has to be the name of this node."
	if a.Source == Etcd {
		hint = "`ip addr` lists them. --node-ip of fairlead-agent has to be addresses of this host."
	}
	return Missing{fmt.Sprintf("no link of this host has an address of node %s: %v", node, listed), hint}
}

// families returns an address of each family, in the order in which nodes prefer them.
func families() [2]netip.Addr { return [2]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} }

// uplinkOf returns the uplink of the first address that a link has.
func (a *Agent) uplinkOf(listed []netip.Addr, all []rtnl.LinkAddr) (uplink, error) {
	for _, e := range listed {
		i := slices.IndexFunc(all, func(have rtnl.LinkAddr) bool { return have.Prefix.Addr() == e })
		if i < 0 {
			continue
		}
		l, err := rtnl.LinkByIndex(a.World.Host, all[i].Link)
		if err != nil {
			return uplink{addr: e}, err
		}
		return uplink{addr: e, name: l.Name, index: l.Index, subnet: all[i].Prefix.Masked(),
			mtu: cmp.Or(a.MTU, l.MTU-a.overhead(e))}, nil
	}
	return uplink{addr: listed[0]}, nil
}

// overhead returns the bytes that are added to packets.
func (a *Agent) overhead(local netip.Addr) int {
	switch a.Mode {
	case DirectOnly:
		return 0
	case WireGuard: // whose device is for both families
		return overlay.WireGuardOverhead
	}
	return overlay.Overhead(local)
}

// leastMTU returns the size of the largest packet that each of the uplinks carries.
func (a *Agent) leastMTU(ups []uplink) (mtu int) {
	for _, up := range ups {
		if up.mtu != 0 && (mtu == 0 || up.mtu < mtu) {
			mtu = up.mtu
		}
	}
	return mtu
}

// device returns the name of the VXLAN device of an uplink.
func (a *Agent) device(up uplink) string {
	if up.addr.Is4() {
		return a.Device
	}
	return a.Device + "6"
}

// withEntries returns the names of devices that have neighbours and forwarding entries for each node.
func (a *Agent) withEntries(devices []device) (names []string) {
	if a.Mode == WireGuard {
		return nil
	}
	for _, d := range devices {
		names = append(names, d.name)
	}
	return names
}

// A NoCommonFamily says that two nodes have no addresses of one family, so that neither reaches the other.
type NoCommonFamily struct {
	Node, Self           string
	Endpoints, Addresses []netip.Addr // of Node, and of Self
}

func (e NoCommonFamily) Error() string {
	return fmt.Sprintf("nodes %s and %s have no addresses of one family: %[1]s has %[3]v, %[2]s has %[4]v: give one of "+
		"them an InternalIP of the other's family", e.Node, e.Self, e.Endpoints, e.Addresses)
}

// peers returns the other nodes as the kernel is to have them. A node that cannot be reached is an error, and the
// others are peers all the same. Two nodes use IPv4 if both have it, and else IPv6, whichever of them decides.
func (a *Agent) peers(nodes []directory.Node, self directory.Node, ups []uplink) (peers []overlay.Peer, err error) {
	var errs []error
	owners := keyOwners(nodes)
	for _, n := range nodes {
		if n.Name == self.Name || len(n.Prefixes) == 0 {
			continue
		}
		if err := a.suits(n, owners); err != nil {
			errs = append(errs, err)
			continue
		}
		i := slices.IndexFunc(ups, func(up uplink) bool { return len(n.Of(up.addr)) > 0 })
		if i < 0 {
			errs = append(errs, NoCommonFamily{n.Name, self.Name, n.Endpoints, self.Endpoints})
			continue
		}
		mac, err := net.ParseMAC(n.MAC)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
			continue
		}
		p := overlay.Peer{Device: a.device(ups[i]), Node: n.Name, MAC: mac, Endpoint: n.Of(ups[i].addr)[0],
			Prefixes: n.Prefixes, Src: own(self)}
		if err := a.shorten(&p, n, ups, ups[i].mtu); err != nil {
			errs = append(errs, err)
			continue
		}
		peers = append(peers, p)
	}
	return peers, errors.Join(errs...)
}

// inUse returns the uplinks by which there are peers, and the first one where there are none.
func (a *Agent) inUse(ups []uplink, peers []overlay.Peer) (used []uplink) {
	for _, up := range ups {
		uses := func(p overlay.Peer) bool {
			return p.Device == a.device(up) || a.Mode == WireGuard && p.Endpoint.Is4() == up.addr.Is4()
		}
		if slices.ContainsFunc(peers, uses) {
			used = append(used, up)
		}
	}
	if len(used) == 0 {
		return ups[:1]
	}
	return used
}

// links are those whose events concern the agent.
type links struct {
	devices, uplinks []int
	all              bool // an address is on no link, and may come to any
}

// watch has events for changes of the devices and the uplinks, until ctx ends. Of the neighbours on uplinks, which
// come and go, it has none.
func (a *Agent) watch(ctx context.Context, events chan<- struct{}, failed chan<- error) {
	listen := func(concerns func(l *links, index int) bool, groups ...uint) {
		failed <- rtnl.Watch(ctx, a.World.Host, groups, func(index int) {
			if l := a.links.Load(); index != 0 && (l == nil || !concerns(l, index)) {
				return
			}
			select {
			case events <- struct{}{}:
			default:
			}
		})
	}
	go listen(func(l *links, index int) bool { return slices.Contains(l.devices, index) }, rtnl.NeighbourEvents)
	go listen(func(l *links, index int) bool {
		return l.all || slices.Contains(l.devices, index) || slices.Contains(l.uplinks, index)
	}, rtnl.LinkEvents, rtnl.IPv4RouteEvents, rtnl.IPv6RouteEvents)
}
