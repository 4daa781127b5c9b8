// Package bridge connects containers to a bridge on the host, a switch in the kernel.
//
// With access or trunk (or vlan and vlanTrunk, the keys of the reference plugin) the bridge separates VLANs. Packets
// without a tag are in its default VLAN, 1; a container in another VLAN cannot receive from it or send to it. With
// isGateway, the host has an interface BRIDGE.VLAN, which all containers of the VLAN share as their gateway; the
// bridge itself then has no address. A policy of the plugin firewall applies to that interface. A container in several
// VLANs is on the network of each of them, and their gateways may have different policies or none.
//
// If br_netfilter passes bridged packets through the packet filter (net.bridge.bridge-nf-call-iptables, which Docker
// and kubelet turn on), addresses are translated before the host routes the packets. Then ipMasq and published ports
// do not work for VLANs with a gateway, and ADD warns on stderr.
//
// With isGateway, the containers of a network may have addresses of several subnets of a family, by `ipam.ranges` or by
// the runtime's `ipRanges`: the bridge has a gateway for each, and traffic between them is not masqueraded. On such a
// bridge the host sends no ICMP redirects for IPv4 (net.ipv4.conf.all.send_redirects and that of the bridge are 0). A
// gateway that the plugin added stays until no container and no configuration of a network needs it. A gateway of
// another network in its place is a conflict, which ADD and STATUS report.
//
// The plugin keeps the bridge that it makes, because others may use it. With removeWhenEmpty, DEL and GC remove the
// bridge with its last port, and the gateways of its VLANs. They keep it if another program made it, gave it another
// address or alias, or has a port or another interface on it.
//
// The host-side interface of a container has no IPv6 (net.ipv6.conf.LINK.disable_ipv6), because each one with IPv6
// would make ADD slower. The container's own IPv6 traffic is not affected.
package bridge

import (
	"cmp"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/keys"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/filter/spoof"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/resource/network"
	"github.com/fairlead-cni/fairlead/resource/reference"
	"github.com/fairlead-cni/fairlead/resource/sysctl"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the bridge plugin.
var Plugin = sdk.Interface("bridge", "connects containers to a bridge on the host", want, kinds).KnowsArgs("MAC")

// conf is what the plugin reads beside "ipam" and "dns".
type conf struct {
	// Name of the bridge on the host. The plugin makes the bridge if it does not exist. Default: cni0.
	Bridge string `json:"bridge" want:"ifname"`
	// Give the bridge the address of the gateway, and turn on IP forwarding on the host. ADD refuses an address that is
	// the next hop of a route of the host, because the host would lose that route. Default: false.
	IsGateway bool `json:"isGateway"`
	// Like isGateway, and also give the container a default route through the bridge. Default: false.
	IsDefaultGateway bool `json:"isDefaultGateway"`
	// Replace another IPv4 address of the bridge, or an IPv6 address of the same subnet, with the gateway's. Other
	// gateways of the network stay. Default: false, ADD refuses such a bridge.
	ForceAddress bool `json:"forceAddress"`
	keys.Masquerade
	keys.Cable
	// Let the bridge send a frame back through the port that it came from (hairpin mode), so that a container can reach
	// itself through a published port. Default: false.
	HairpinMode bool `json:"hairpinMode"`
	// Set the bridge to promiscuous mode. Excludes hairpinMode. Default: false.
	PromiscMode bool `json:"promiscMode"`
	// Drop frames from the container whose source MAC is not the one that this plugin gave it. This includes a MAC that
	// the tuning plugin sets later. Default: false.
	MacSpoofChk bool `json:"macspoofchk"`
	// Let the kernel check that no other machine has the container's IPv6 addresses (duplicate address detection).
	// Default: false.
	EnableDAD bool `json:"enabledad"`
	// Isolate the container's port: containers with isolated ports on the same bridge cannot reach each other. Default:
	// false.
	PortIsolation bool `json:"portIsolation"`
	keys.Conflicts

	// Remove the bridge when its last port is removed. The plugin removes only a bridge that it made and that nothing
	// else uses. Default: false.
	RemoveWhenEmpty bool `json:"removeWhenEmpty"`

	// Leave the container interface down. Only without ipam. Default: false.
	DisableContainerInterface bool `json:"disableContainerInterface"`

	vlanConf
}

func (c conf) validate(r *sdk.Request) error {
	switch {
	case c.HairpinMode && c.PromiscMode:
		return spec.Errorf(spec.CodeConfig,
			"hairpinMode and promiscMode: set one of them; with both, the host would see its own frames again")
	case c.DisableContainerInterface && r.L3:
		return spec.Errorf(spec.CodeConfig,
			"disableContainerInterface: true: an interface that stays down cannot have the addresses that ipam "+
				"gives; remove one of the two")
	}
	if err := c.Cable.Validate(r); err != nil {
		return err
	}
	if c.EnableDAD && c.Off() {
		return spec.Errorf(spec.CodeConfig,
			"conflictDetection: \"off\": contradicts enabledad, which checks IPv6 addresses; remove one of the two")
	}
	if err := c.Conflicts.Validate(r); err != nil {
		return err
	}
	if err := c.validateVLANs(r.L3, c.Bridge, c.IsGateway); err != nil {
		return err
	}
	return c.Masquerade.Validate(r)
}

// kinds are those of all that the plan may have. The plugin that made the bridge also removes a policy on it: the list
// of an attachment may have lost its plugin firewall.
func kinds(c conf) []plan.Kind {
	all := []plan.Kind{network.TransientBridgeKind(), link.VethKind(cmp.Or(c.Bridge, "cni0")), link.PortKind(),
		spoof.Kind(), reference.SpoofCheckKind(), policy.Kind(), addr.GatewayKind()}
	return append(all, keys.MasqueradeKinds()...)
}

func want(c conf, r *sdk.Request) (answer sdk.Answer, err error) {
	c.MTU = c.LinkMTU(r)
	c.Bridge = cmp.Or(c.Bridge, "cni0")
	c.IsGateway = c.IsGateway || c.IsDefaultGateway
	if err := c.validate(r); err != nil {
		return answer, err
	}
	if !r.L3 {
		c.warnIdle(&answer)
	}
	host, p, err := c.HostName(r)
	if err != nil {
		return answer, err
	}
	if host == c.Bridge || host == c.gatewayLink().Name() {
		return answer, spec.Errorf(spec.CodeConfig,
			"hostInterfaceName: %q: is the name of the bridge, or of its VLAN's gateway", host)
	}
	p = append(p, plan.Required(link.Kind{Where: resource.Host, Link: c.Bridge, Kind: "bridge", Key: "bridge"}))
	if c.filtering() && !c.VlanFiltering {
		p = append(p, plan.Required(link.Filtering{Bridge: c.Bridge}))
	}
	p = append(p, c.Masquerade.Required()...)
	bridge := c.bridge(r)
	p = append(p, bridge)
	port, links, err := c.port(r, host, bridge)
	if err != nil {
		return answer, err
	}
	wait := port
	if port != host {
		wait = "" // a tap carries nothing before its hypervisor has opened it
	}
	p = append(p, links...)
	p = append(p, c.ipv6Off(r)...)
	if c.MacSpoofChk {
		p = append(p, spoof.Check{Owner: r.Owner, Link: port, MAC: c.MAC(r)})
	}
	c.gateways(r)
	if len(r.IPs) > 0 || !r.L3 {
		p = append(p, c.history(r))
	}
	answer.Gateway = c.IsGateway
	p = append(p, c.gatewayPlan(r)...)
	alone := c.portAddrs(r, host, port, &answer)
	asks := c.EnableDAD || c.Conflicts.Probe() // then the segment's own answer comes first: a DHCP server is told of it
	if !asks {
		p = append(p, alone...)
	}
	p = append(p, c.Masquerade.Plan(r)...)
	if !r.L3 && !c.DisableContainerInterface && wait != "" {
		p = append(p, addr.Announce{Link: r.IfName, Port: wait})
	}
	p = append(p, r.Addressing(sdk.Addressing{Link: r.IfName, Port: wait, Bridge: c.Bridge, Probe: c.Probe(),
		NoDAD: !c.EnableDAD || c.Off()})...)
	if asks {
		p = append(p, alone...)
	}
	answer.Plan, answer.IPs, answer.Routes = p, r.IPs, r.Routes
	return answer, nil
}

// ipv6Off keeps the container interface from ever getting an IPv6 address of its own: it comes up afterwards.
func (c conf) ipv6Off(r *sdk.Request) plan.Plan {
	if c.IPv6 != "off" {
		return nil
	}
	p := plan.Plan{sysctl.IPv6Off{Link: r.IfName}}
	if !c.DisableContainerInterface {
		p = append(p, link.Up{Link: r.IfName})
	}
	return p
}

// portAddrs are the addresses that no other port of the segment has.
func (c conf) portAddrs(r *sdk.Request, host, port string, answer *sdk.Answer) plan.Plan {
	vlan, one := c.segment()
	switch {
	case !one || port != host || len(r.IPs) == 0:
		return nil
	case len(r.IPs) > addr.MostPortAddrs:
		answer.Warn("ipam: %d addresses: are more than %d, so they are not reserved on bridge %s; make sure that no "+
			"other container has one of them", len(r.IPs), addr.MostPortAddrs, c.Bridge)
		return nil
	}
	return plan.Plan{addr.PortAddrs{Network: r.Network, Port: port, Bridge: c.Bridge, VLAN: vlan,
		Addrs: r.Prefixes(), ByHand: r.ByHand()}}
}

// warnIdle is for a link without addresses.
func (c conf) warnIdle(answer *sdk.Answer) {
	c.Masquerade.WarnIdle(answer)
	key := "isGateway"
	if c.IsDefaultGateway {
		key = "isDefaultGateway"
	}
	if c.IsGateway {
		answer.Warn("%s: true: has no effect: ipam has no type, so the container has no address that needs a gateway",
			key)
	}
}

// history is what the attachment's addresses and those of its gateways are remembered by.
func (c conf) history(r *sdk.Request) plan.Resource {
	h := addr.AddressHistory{Bridge: c.Bridge}
	for _, ip := range r.IPs {
		h.Addrs = append(h.Addrs, ip.Address.Addr())
		if c.IsGateway && !slices.Contains(h.Addrs, ip.Gateway) {
			h.Addrs = append(h.Addrs, ip.Gateway)
		}
	}
	return h
}

// bridge is the switch, which containers share, and goes with its last port where that is asked for.
func (c conf) bridge(r *sdk.Request) plan.Resource {
	b := link.Bridge{Name: c.Bridge, MTU: c.MTU, Promisc: c.PromiscMode, VLANs: c.filtering(), Switch: c.VlanFiltering,
		KeepMAC: c.IsGateway}
	if c.RemoveWhenEmpty {
		return network.TransientBridge{Bridge: b, Network: r.Network, Owner: r.Owner}
	}
	return plan.Shared(b)
}

// port is how the container gets on the bridge: by a cable of its own, or, where a plugin before this one
// made a link on the host (a hypervisor's tap, say), by making that a port (clause P23).
func (c conf) port(r *sdk.Request, host string, bridge plan.Resource) (name string, p plan.Plan, err error) {
	pair := link.Veth{
		Owner: r.Owner, Name: r.IfName, Host: host, MTU: c.MTU, MAC: c.MAC(r), HostMAC: r.HostMAC(),
		Master: c.Bridge, Hairpin: c.HairpinMode, Isolated: c.PortIsolation, Down: c.DisableContainerInterface ||
			c.IPv6 == "off", VLANs: c.vlans(), Recreate: bridge,
	}
	port := link.Port{Owner: r.Owner, Master: c.Bridge, Hairpin: c.HairpinMode, Isolated: c.PortIsolation,
		VLANs: c.vlans(), Recreate: bridge}
	var found []string
	for _, l := range r.HostLinks {
		switch {
		case l.Name == pair.Host, l.Was == pair.Host:
			return pair.Host, plan.Plan{pair}, nil
		case r.IsVLANGateway(l): // in CHECK
		case !l.OtherNetns && l.Kind != "bridge" && l.Kind != "ifb" && l.Name != "lo" &&
			(l.Master == "" || l.Master == c.Bridge):
			found = append(found, l.Name)
		}
	}
	if r.Peer != nil && slices.Contains(found, r.Peer.Name) {
		found = []string{r.Peer.Name}
	}
	switch len(found) {
	case 0:
		return pair.Host, plan.Plan{pair}, nil
	case 1:
		port.Link = found[0]
		p = plan.Plan{port}
		// whose own plugin may have left it down
		if r.InContainer() && !c.DisableContainerInterface && c.IPv6 != "off" {
			p = append(p, link.Up{Link: r.IfName})
		}
		return port.Link, p, nil
	}
	return "", nil, spec.Errorf(spec.CodeConfig,
		"prevResult: %s: several interfaces of the host could become a port of %s; the plugin can attach only one",
		strings.Join(found,
			", "), c.Bridge)
}
