package doctor

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// byResult compares an attachment of another project's plugins with the result of its ADD, because its plan is
// unknown.
func (d *Doctor) byResult(c attach.Cached) {
	if c.Result == nil {
		return
	}
	links, off := repair.Links(d.World, &c)
	bridge := ""
	for _, l := range links {
		if l.Kind == "bridge" {
			bridge = l.Name
			d.gateways(c, l)
		}
	}
	if bridge == "" {
		bridge = BridgeOf(c)
	}
	for _, w := range off {
		set := "ip link set dev " + w.Link
		switch {
		case w.LacksLink() && w.Want == bridge:
			d.add(BridgeMissing, bridge, "bridge "+bridge+" does not exist", affects(c), "fix", advice.Remakes)
		case w.LacksLink():
			d.add(HostInterfaceMissing, OnHost, "", affects(c, w.Want), how(advice.Remake(c))...)
		case w.Field == "master":
			d.add(HostInterfaceDetached, bridge, "a host-side interface is not a port of bridge "+bridge,
				affects(c, w.Link), "fix", set+" master "+bridge)
		case w.Link == bridge:
			d.add(BridgeDown, bridge, "bridge "+bridge+" is down", affects(c), "fix", set+" up")
		default:
			d.add(HostInterfaceDown, OnHost, "", affects(c, w.Link), "fix", set+" up")
		}
	}
	d.Inside(c, func(ns *kernel.NS) { d.insideByResult(ns, c) })
}

// BridgeOf returns the bridge that the list of an attachment names.
func BridgeOf(c attach.Cached) string {
	l := c.AttachedBy(nil)
	if l == nil {
		return ""
	}
	w, _ := netconf.WireOf(l)
	return w.Link
}

// gateways adds a finding for each gateway address of the containers that their bridge lacks.
func (d *Doctor) gateways(c attach.Cached, bridge *rtnl.Link) {
	if !bridge.Up {
		return
	}
	if l := c.AttachedBy(nil); l != nil {
		var conf struct{ IsGateway, IsDefaultGateway bool }
		raw, err := l.WrittenOut().Plugins[0].Object.MarshalJSON()
		if err == nil && json.Unmarshal(raw, &conf) == nil && !conf.IsGateway && !conf.IsDefaultGateway {
			return // a router on the segment may have the address
		}
	}
	addrs, err := rtnl.Addrs(d.Host, bridge.Index)
	if err != nil {
		return
	}
	for _, ip := range attached.OwnIPs(c) {
		if !ip.Gateway.IsValid() {
			continue
		}
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if rtnl.HasAddr(addrs, ip.Gateway) {
			d.subnetRoute(c, bridge, gw)
			continue
		}
		routed := func(r spec.Route) bool { return r.Dst.Bits() == 0 && r.Dst.Addr().Is4() == ip.Gateway.Is4() }
		if slices.ContainsFunc(c.Result.Routes, routed) {
			d.add(BridgeAddressMissing, bridge.Name, "", affects(c, gw.String()),
				"fix", fmt.Sprintf("ip addr add %v dev %s", gw, bridge.Name))
		}
	}
}

// subnetRoute adds a finding if the host has no route to the subnet of a gateway.
func (d *Doctor) subnetRoute(c attach.Cached, bridge *rtnl.Link, gw netip.Prefix) {
	missing, instead, err := rtnl.LacksSubnetRoute(d.Host, bridge.Index, gw)
	if err != nil || !missing {
		return
	}
	leads := ""
	if instead != nil {
		leads = instead.Leads(d.Host)
	}
	d.unrouted(c, bridge.Name, gw.Masked(), leads, routing(bridge.Name, gw))
}

// unrouted adds the finding that the route to the subnet of a bridge is missing, or leads elsewhere.
func (d *Doctor) unrouted(c attach.Cached, bridge string, subnet netip.Prefix, leads string, fix ...string) {
	what := "the host has no route to " + subnet.String()
	if leads != "" {
		what = fmt.Sprintf("the host's route to %v leads %s", subnet, leads)
	}
	if len(fix) > 0 {
		fix = []string{"fix", fix[0]}
	}
	d.add(BridgeRouteMissing, bridge, what, affects(c), fix...)
}

// routing is the command that gives the host the route to the subnet of a gateway, in the place of another one.
func routing(bridge string, gw netip.Prefix) string {
	replace := fmt.Sprintf("ip route replace %v dev %s proto kernel", gw.Masked(), bridge)
	if gw.Addr().Is4() {
		return replace + " scope link src " + gw.Addr().String()
	}
	return replace + " metric 256"
}

// insideByResult compares the inside of the container.
func (d *Doctor) insideByResult(ns *kernel.NS, c attach.Cached) {
	l, err := rtnl.LinkByName(ns, c.IfName)
	if err != nil {
		d.add(ContainerInterfaceMissing, "container", "", affects(c, err.Error()), how(advice.Remake(c))...)
		return
	}
	if !l.Up {
		d.add(ContainerInterfaceDown, "container", "", affects(c, c.IfName+" is down"), how(advice.Remake(c))...)
	}
	addrs, err := rtnl.Addrs(ns, l.Index)
	if err != nil {
		return
	}
	for _, p := range attached.OwnAddresses(c) {
		if !rtnl.HasAddr(addrs, p.Addr()) {
			d.add(ContainerAddressMissing, "container", "", affects(c, p.String()+" is missing"),
				how(advice.Remake(c))...)
		}
	}
	for _, r := range c.Result.Routes {
		routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.Family(r.Dst.Addr()), Table: rtnl.MainTable,
			Link: l.Index})
		has := func(have rtnl.Route) bool { return have.Dst == r.Dst.Masked() }
		if err == nil && r.Table == nil && !slices.ContainsFunc(routes, has) {
			text := strings.Replace(r.Dst.String(), "0.0.0.0/0", "default", 1)
			d.routeMissing(c, "route "+text+" is missing", r.Dst)
		}
	}
}

// routeMissing adds a finding for a route that a container lacks. It names the one to the same destination that the
// container has.
func (d *Doctor) routeMissing(c attach.Cached, text string, dst netip.Prefix) {
	details := []string{text}
	d.Inside(c, func(ns *kernel.NS) {
		routes, _ := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.Family(dst.Addr()), Table: rtnl.MainTable})
		for _, r := range routes {
			l, err := rtnl.LinkByIndex(ns, r.Link)
			if r.Dst == dst.Masked() && r.Type == rtnl.Unicast && err == nil {
				other := fmt.Sprintf("in its place is the route to %v via %v dev %s", r.Dst, r.Via, l.Name)
				details = append(details, other)
			}
		}
	})
	d.add(ContainerRouteMissing, "container", "", affects(c, details...), how(advice.Route(c, dst))...)
}
