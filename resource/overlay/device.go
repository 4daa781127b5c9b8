// Package overlay holds what a node has on its way to the containers of other nodes: a VXLAN device, and for each other
// node a neighbour, a forwarding entry and routes, or a WireGuard device and routes. They belong to the node and to no
// attachment.
package overlay

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// mark is the alias of devices of this package. The kernel ignores it in the request that makes a device, and takes the
// link group there: an agent that is killed in between leaves a device with the group alone.
const (
	mark  = "fairlead-cluster"
	group = 0x7B<<24 | 0x766C6E
)

// kinds are the kinds of devices of this package.
func kinds() []string { return []string{"vxlan", "wireguard"} }

// Made reports whether this package has made a link.
func Made(l *rtnl.Link) bool {
	unfinished := l.Alias == "" && l.Group == group
	return slices.Contains(kinds(), l.Kind) && (l.Alias == mark || unfinished)
}

// MAC returns the MAC address of a node's device. It follows from the names of the cluster and the node, so that other
// nodes know it, and it is the same after a boot and after the node was registered again.
func MAC(cluster, node string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(cluster + "\x00" + node))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2 // of one station, and locally administered
	return mac
}

// Overhead returns the bytes that VXLAN adds to a packet between nodes whose addresses are of the family of local: an
// Ethernet, a VXLAN, a UDP and an IP header.
func Overhead(local netip.Addr) int {
	if local.Is4() {
		return 50
	}
	return 70
}

// A Device is the VXLAN device of a node. It learns no MAC addresses, and has no uplink of its own: a packet to another
// node leaves as the host's routes say.
type Device struct {
	Name  string
	ID    uint32 // network identifier, 24 bits
	Port  uint16 // UDP port of all nodes
	Local netip.Addr
	MAC   net.HardwareAddr
	MTU   int // bytes; zero is no opinion
}

func (d Device) String() string {
	return resource.Line("vxlan host/"+d.Name, "address "+d.MAC.String(),
		fmt.Sprintf("id %d dstport %d", d.ID, d.Port), resource.Opt("local", d.Local), "nolearning",
		resource.Opt("mtu", d.MTU))
}

func (d Device) link() tunnel { return tunnel{d.Name} }

// Traits implements resource.Describer.
func (d Device) Traits() resource.Traits {
	return resource.Traits{On: resource.Iface{Where: resource.Host, Name: d.Name},
		Possible: resource.KindPossible("vxlan")}
}

// Ensure implements plan.Resource. What the kernel does not let change of a device takes a new one, and the routes by
// the former one go with it.
func (d Device) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	have, err := d.link().own(w)
	if resource.ExceptNoLink(err) != nil {
		return false, err
	}
	if have != nil && d.fixed(have).Err() != nil {
		if err := rtnl.DelLink(w.Host, have.Index); err != nil {
			return false, err
		}
		have = nil
	}
	if have == nil {
		return d.add(w)
	}
	changed, err := d.link().set(w)
	if err != nil {
		return changed, err
	}
	if have.Data.VXLAN.Local != d.Local {
		if err := rtnl.SetVXLANLocal(w.Host, d.Name, d.Local); err != nil {
			return changed, err
		}
		changed = true
	}
	change, lacks := resource.Lacks(have, d.settings())
	if len(lacks) == 0 {
		return changed, nil
	}
	return true, rtnl.SetLink(w.Host, d.Name, change)
}

// settings are those that a device can get at any time.
func (d Device) settings() rtnl.LinkChange {
	return rtnl.LinkChange{MAC: d.MAC, MTU: d.MTU, Alias: mark, Up: true}
}

// add makes the device.
func (d Device) add(w *kernel.World) (bool, error) {
	data := rtnl.VXLAN{ID: d.ID, Port: d.Port, Local: d.Local}
	err := d.link().add(w, rtnl.NewLink{Kind: "vxlan", MAC: d.MAC, MTU: d.MTU, Data: data.Add})
	if err != nil {
		return false, fmt.Errorf("%w%s", err, d.rival(w))
	}
	return true, nil
}

// rival names the device that has the port and the network identifier, which only one device can have.
func (d Device) rival(w *kernel.World) string {
	links, err := rtnl.Links(w.Host)
	if err != nil {
		return ""
	}
	for _, l := range links {
		if v := l.Data.VXLAN; v != nil && v.ID == d.ID && v.Port == d.Port {
			return fmt.Sprintf(": link %s has id %d and port %d already: choose another id or port for the cluster, "+
				"or delete it with `ip link del %[1]s`", l.Name, d.ID, d.Port)
		}
	}
	return ""
}

// fixed returns the differences of what stays as it is for the life of a device.
func (d Device) fixed(have *rtnl.Link) (drift resource.Drift) {
	is := have.Data.VXLAN
	if is == nil {
		drift.Want("type", "vxlan", have.Kind)
		return drift
	}
	drift.Want("id", d.ID, is.ID)
	drift.Want("dstport", d.Port, is.Port)
	if d.Local.Is4() != is.Local.Is4() {
		drift.Want("local", d.Local, is.Local)
	}
	drift.Want("learning", false, is.Learning)
	return drift
}

// Verify implements plan.Resource.
func (d Device) Verify(ctx context.Context, w *kernel.World) error {
	have, err := d.link().own(w)
	if err != nil {
		return err
	}
	drift := d.fixed(have)
	if v := have.Data.VXLAN; v != nil && d.Local.Is4() == v.Local.Is4() {
		drift.Want("local", d.Local, v.Local)
	}
	_, lacks := resource.Lacks(have, d.settings())
	drift = append(drift, lacks...)
	return append(drift, d.link().lacks(w)...).Err()
}

// Remove implements plan.Remover. It leaves a link that another program made.
func (d Device) Remove(ctx context.Context, w *kernel.World) error { return d.link().remove(w) }
