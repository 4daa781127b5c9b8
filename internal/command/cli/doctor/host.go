package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// ofRoutes examines the default routes of the host.
func (d *Doctor) ofRoutes() {
	if routed := d.routed(rtnl.IPv4); d.lacksRoute(routed, rtnl.IPv4) {
		down := d.linksDown()
		if len(down) == 0 {
			d.add(HostRouteMissing, "host", "the host has no IPv4 default route", affectsAll(routed))
			return
		}
		what := "down is link " + strings.Join(down, ", ") + ", and the host has no default route"
		d.addWith(HostRouteMissing, "host", what, affectsAll(routed),
			look("ip link set dev "+down[0]+" up && ip route add default via ROUTER dev "+down[0]))
		return
	}
	routed := slices.DeleteFunc(d.routed(rtnl.IPv6), func(c attach.Cached) bool { return !needs6(c) })
	if !d.lacksRoute(routed, rtnl.IPv6) {
		return
	}
	for _, c := range routed {
		if hasDefaultRoute(c, rtnl.IPv4) {
			d.add(HostRoute6Missing, "host", "", affects(c))
		} else {
			d.add(HostRouteMissing, "host", "the host has no IPv6 default route", affects(c), "ip route", "ip -6 route")
		}
	}
}

// needs6 reports whether programs in a container use IPv6. From a private address they prefer IPv4 (RFC 6724).
func needs6(c attach.Cached) bool {
	return slices.ContainsFunc(attached.OwnAddresses(c), func(p netip.Prefix) bool {
		a := p.Addr()
		return a.Is6() && (!a.IsPrivate() || !hasDefaultRoute(c, rtnl.IPv4))
	})
}

// routed returns the attachments whose default route of a family leads to this host.
func (d *Doctor) routed(family uint8) (all []attach.Cached) {
	for _, c := range d.Selected {
		if d.hostLink(c) != "" && !d.Gone(c) && d.routes(c, family) {
			all = append(all, c)
		}
	}
	return all
}

// isDefault reports whether a route of the result of ADD is a default route of a family.
func isDefault(r spec.Route, family uint8) bool {
	return r.Dst.Bits() == 0 && rtnl.Family(r.Dst.Addr()) == family
}

// hasDefaultRoute reports whether the result of ADD has a default route of a family.
func hasDefaultRoute(c attach.Cached, family uint8) bool {
	return slices.ContainsFunc(c.Result.Routes, func(r spec.Route) bool { return isDefault(r, family) })
}

// routes reports whether the gateway of a container is this host. If the list's IPAM gives another gateway, the
// host's own routes do not matter.
func (d *Doctor) routes(c attach.Cached, family uint8) bool {
	addrs, err := rtnl.AllAddrs(d.Host)
	return slices.ContainsFunc(c.Result.Routes, func(r spec.Route) bool {
		leadsHere := err != nil || !r.GW.IsValid() || rtnl.HasAddr(addrs, r.GW)
		return isDefault(r, family) && leadsHere
	})
}

// lacksRoute reports whether the host lacks the default route of a family, and attachments need it.
func (d *Doctor) lacksRoute(routed []attach.Cached, family uint8) bool {
	if len(routed) == 0 {
		return false
	}
	routes, err := rtnl.Routes(d.Host, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable})
	if err != nil {
		d.Unexamined("the host's routes: %v", err)
		return false
	}
	return !slices.ContainsFunc(routes, func(r rtnl.Route) bool { return r.Default() && r.Type == rtnl.Unicast })
}

// defaultRoutes returns the default routes of a family in a namespace; none if they cannot be read.
func defaultRoutes(ns *kernel.NS, family uint8) []rtnl.Route {
	routes, _ := rtnl.Routes(ns, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable})
	other := func(r rtnl.Route) bool { return r.Dst.Bits() != 0 || r.Type != rtnl.Unicast }
	return slices.DeleteFunc(routes, other)
}

// linksDown names the links that are down and that may have had the host's default route.
func (d *Doctor) linksDown() (down []string) {
	links, _ := rtnl.Links(d.Host)
	for _, l := range links {
		isPort := l.Master != 0
		isOurs := l.Kind == "bridge" || identity.OfGroup(l.Group)
		if l.Ethernet && !l.Up && !isPort && !isOurs {
			down = append(down, l.Name)
		}
	}
	return down
}

// ofAddresses adds a finding for each address of a container that a link of the host has.
func (d *Doctor) ofAddresses() {
	addrs, err := rtnl.AllAddrs(d.Host)
	if err != nil {
		d.Unexamined("the addresses of the host: %v", err)
		return
	}
	for _, c := range d.Selected {
		for _, a := range addrs {
			address := a.Prefix.Addr()
			if !attached.HasAddress(c, address) || d.Gone(c) {
				continue
			}
			link := rtnl.NameOf(d.Host, a.Link)
			what := fmt.Sprintf("link %s of the host has the address %v of a container", link, address)
			d.add(HostHasAddress, OnHost, what, affects(c), "ADDRESS/PREFIX", a.Prefix.String(), "LINK", link)
		}
	}
}

// ofForwarding examines the links by which packets of containers reach the host. Repair reports settings of the whole
// host.
func (d *Doctor) ofForwarding() {
	routed := d.routed(rtnl.IPv4)
	if len(routed) == 0 {
		return
	}
	const forAll = "net/ipv4/ip_forward"
	all, err := procsys.Get(d.Host, forAll)
	switch {
	case err != nil:
		d.Unexamined("%v", err)
		return
	case all == "0" && !d.differs("Forwarding"):
		d.add(ForwardingOff, "host", forAll+" is 0, want 1", affectsAll(routed), "KEY", forAll)
		return
	case all == "0":
		return
	}
	var uplinks []string
	if uplink, err := rtnl.Egress(d.Host); err == nil {
		uplinks = append(uplinks, uplink.Name)
	}
	for _, c := range routed {
		for _, name := range append([]string{d.hostLink(c)}, uplinks...) {
			key := "net/ipv4/conf/" + name + "/forwarding"
			if v, err := procsys.Get(d.Host, key); err == nil && v == "0" {
				d.add(ForwardingOff, name, key+" is 0", affects(c), "KEY", key)
			}
		}
	}
}

// conntrack compares the number of tracked connections with its limit.
func (d *Doctor) conntrack(dir string) {
	count, err := numberIn(dir + "nf_conntrack_count")
	if errors.Is(err, fs.ErrNotExist) { // the module is not loaded, so there are no connections
		return
	}
	most, err2 := numberIn(dir + "nf_conntrack_max")
	if err = errors.Join(err, err2); err != nil {
		d.Unexamined("the connection tracking table: %v", err)
		return
	}

	what := fmt.Sprintf("%d of %d connections", count, most)
	more := strconv.Itoa(2 * most)
	switch {
	case most > 0 && count >= most:
		d.add(ConntrackFull, "host", what, nil, "MORE", more)
	case most > 0 && count >= most/10*9:
		d.add(ConntrackNear, "host", what, nil, "MORE", more)
	}
}

// numberIn returns the number that a file consists of.
func numberIn(file string) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// neighbours compares the size of the neighbour tables, which all namespaces share, with their limit.
func (d *Doctor) neighbours(proc string) {
	for _, t := range [][2]string{{"ipv4", "arp_cache"}, {"ipv6", "ndisc_cache"}} {
		family, table := t[0], t[1]
		most, err := numberIn(proc + "/sys/net/" + family + "/neigh/default/gc_thresh3")
		if err != nil {
			continue // only the machine's first namespace has this file
		}
		stat, _ := os.ReadFile(proc + "/net/stat/" + table)
		_, rows, _ := strings.Cut(string(stat), "\n")
		count := 0
		fmt.Sscanf(rows, "%x", &count) // what cannot be read is not full
		if most == 0 || count < most {
			continue
		}
		d.add(NeighbourTableFull, OnHost, fmt.Sprintf("%d of %d neighbours of %s", count, most, family), nil,
			"FAMILY", family, "MORE", strconv.Itoa(4*most))
	}
}

// hostLink returns the link by which the packets of a container reach the host: the bridge, or the host-side
// interface. It is empty if there is none, as for macvlan.
func (d *Doctor) hostLink(c attach.Cached) (name string) {
	links, _ := repair.Links(d.World, &c)
	for _, l := range links {
		if l.Master != 0 {
			if m, err := rtnl.LinkByIndex(d.Host, l.Master); err == nil {
				return m.Name
			}
		}
		if name = l.Name; l.Kind == "bridge" {
			break
		}
	}
	return name
}
