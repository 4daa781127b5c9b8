package doctor

import (
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
)

// byResult compares an attachment of another project's plugins with the result of its ADD, because its plan is
// unknown.
func (d *Doctor) byResult(c attach.Cached) {
	if c.Result == nil {
		return
	}
	bridge := BridgeOf(c)
	links, off := repair.Links(d.World, &c)
	for _, l := range links {
		if l.Kind == "bridge" {
			bridge = l.Name
			d.gateways(c, l)
		}
	}

	for _, w := range off {
		set := "ip link set dev " + w.Link
		switch {
		case w.LacksLink() && w.Want == bridge:
			d.addWith(BridgeMissing, bridge, "bridge "+bridge+" does not exist", affects(c), fix(advice.Remakes))
		case w.LacksLink():
			d.add(HostInterfaceMissing, OnHost, "", affects(c, w.Want))
		case w.Field == "master":
			d.addWith(HostInterfaceDetached, bridge, "a host-side interface is not a port of bridge "+bridge,
				affects(c, w.Link), fix(set+" master "+bridge))
		case w.Link == bridge:
			d.addWith(BridgeDown, bridge, "bridge "+bridge+" is down", affects(c), fix(set+" up"))
		default:
			d.addWith(HostInterfaceDown, OnHost, "", affects(c, w.Link), fix(set+" up"))
		}
	}
	d.Inside(c, func(ns *kernel.NS) { d.insideByResult(ns, c) })
}

// BridgeOf returns the bridge that the list of an attachment names, whether the bridge exists or not.
func BridgeOf(c attach.Cached) string {
	l := c.AttachedBy(nil)
	if l == nil {
		return ""
	}
	w, _ := netconf.WireOf(l)
	return w.Link
}

// gateways adds a finding for each gateway address of the containers that their bridge lacks, or whose subnet has no
// route to it.
func (d *Doctor) gateways(c attach.Cached, bridge *rtnl.Link) {
	addrs, err := rtnl.Addrs(d.Host, bridge.Index)
	if err != nil || !bridge.Up || !netconf.NetworkOf(d.World, &c).Gateway {
		return // without a gateway of the plan, a router on the segment may have the address
	}
	for _, ip := range attached.OwnIPs(c) {
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		switch {
		case !ip.Gateway.IsValid():
		case !rtnl.HasAddr(addrs, ip.Gateway) && hasDefaultRoute(c, rtnl.Family(ip.Gateway)):
			d.addWith(BridgeAddressMissing, bridge.Name, "", affects(c, gw.String()),
				fix(fmt.Sprintf("ip addr add %v dev %s", gw, bridge.Name)))
		case rtnl.HasAddr(addrs, ip.Gateway):
			missing, instead, err := rtnl.LacksSubnetRoute(d.Host, bridge.Index, gw)
			if err != nil || !missing {
				continue
			}
			leads := ""
			if instead != nil {
				leads = instead.Leads(d.Host)
			}
			d.unrouted(c, bridge.Name, gw, leads)
		}
	}
}

// unrouted adds the finding that the route to the subnet of a gateway is missing, or leads elsewhere.
func (d *Doctor) unrouted(c attach.Cached, bridge string, gw netip.Prefix, leads string) {
	what := noRoute + gw.Masked().String()
	if leads != "" {
		what = fmt.Sprintf("the host's route to %v leads %s", gw.Masked(), leads)
	}
	replace := fmt.Sprintf("ip route replace %v dev %s proto kernel", gw.Masked(), bridge)
	if gw.Addr().Is4() {
		replace += " scope link src " + gw.Addr().String()
	} else {
		replace += " metric 256"
	}
	d.addWith(BridgeRouteMissing, bridge, what, affects(c), fix(replace))
}

const noRoute = "the host has no route to "

// insideByResult compares the inside of the container.
func (d *Doctor) insideByResult(ns *kernel.NS, c attach.Cached) {
	l, err := rtnl.LinkByName(ns, c.IfName)
	if err != nil {
		d.add(ContainerInterfaceMissing, "container", "", affects(c, err.Error()))
		return
	}
	if !l.Up {
		d.add(ContainerInterfaceDown, "container", "", affects(c, c.IfName+" is down"))
	}
	addrs, err := rtnl.Addrs(ns, l.Index)
	if err != nil {
		return
	}
	for _, p := range attached.OwnAddresses(c) {
		if !rtnl.HasAddr(addrs, p.Addr()) {
			d.add(ContainerAddressMissing, "container", "", affects(c, p.String()+" is missing"))
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
			if r.Dst == dst.Masked() && r.Type == rtnl.Unicast {
				other := fmt.Sprintf("in its place is the route to %v %s", r.Dst, r.Leads(ns))
				details = append(details, other)
			}
		}
	})
	d.addWith(ContainerRouteMissing, "container", "", affects(c, details...), advice.Route(c, dst))
}
