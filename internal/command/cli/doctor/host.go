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
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
)

// ofRoutes examines the default routes of the host.
func (d *Doctor) ofRoutes() {
	if d.routeMissingFor(d.routed(rtnl.IPv4), rtnl.IPv4) {
		return
	}
	needs6 := func(c attach.Cached) bool {
		return slices.ContainsFunc(attached.OwnAddresses(c), func(p netip.Prefix) bool {
			a := p.Addr() // from a private address, programs prefer IPv4 (RFC 6724)
			return a.Is6() && (!a.IsPrivate() || !hasDefaultRoute(c, rtnl.IPv4))
		})
	}
	routed6 := slices.DeleteFunc(d.routed(rtnl.IPv6), func(c attach.Cached) bool { return !needs6(c) })
	d.routeMissingFor(routed6, rtnl.IPv6)
}

// routed returns the attachments whose default route of a family leads to this host.
func (d *Doctor) routed(family uint8) (all []attach.Cached) {
	for _, c := range d.Selected {
		if _, link := d.wayIn(c); link != "" && !d.Gone(c) && d.routes(c, family) {
			all = append(all, c)
		}
	}
	return all
}

// hasDefaultRoute reports whether the result of ADD has a default route of a family.
func hasDefaultRoute(c attach.Cached, family uint8) bool {
	return slices.ContainsFunc(c.Result.Routes, func(r spec.Route) bool {
		return r.Dst.Addr().Is4() == (family == rtnl.IPv4) && r.Dst.Bits() == 0
	})
}

// routes reports whether the gateway of a container is this host. If the list's IPAM gives another gateway, the
// host's own routes do not matter.
func (d *Doctor) routes(c attach.Cached, family uint8) bool {
	addrs, err := rtnl.AllAddrs(d.Host)
	return hasDefaultRoute(c, family) && slices.ContainsFunc(c.Result.Routes, func(r spec.Route) bool {
		return r.Dst.Bits() == 0 && r.Dst.Addr().Is4() == (family == rtnl.IPv4) &&
			(err != nil || !r.GW.IsValid() || rtnl.HasAddr(addrs, r.GW))
	})
}

// routeMissingFor adds the finding that the host lacks the default route of these attachments, and reports whether it
// does.
func (d *Doctor) routeMissingFor(routed []attach.Cached, family uint8) bool {
	if len(routed) == 0 {
		return false
	}
	routes, err := rtnl.Routes(d.Host, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable})
	if err != nil {
		d.Unexamined("the host's routes: %v", err)
		return false
	}
	for _, r := range routes {
		if r.Default() && r.Type == rtnl.Unicast {
			return false
		}
	}
	down := d.linksDown()
	switch {
	case family == rtnl.IPv4 && len(down) > 0:
		what := "down is link " + strings.Join(down, ", ") + ", and the host has no default route"
		d.add(HostRouteMissing, "host", what, affectsAll(routed), "look", "ip link set dev "+down[0]+
			" up && ip route add default via ROUTER dev "+down[0])
		return true
	case family == rtnl.IPv4:
		d.add(HostRouteMissing, "host", "the host has no IPv4 default route", affectsAll(routed))
		return true
	}
	for _, c := range routed {
		if hasDefaultRoute(c, rtnl.IPv4) {
			d.add(HostRoute6Missing, "host", "", affects(c))
		} else {
			d.add(HostRouteMissing, "host", "the host has no IPv6 default route", affects(c), "ip route", "ip -6 route")
		}
	}
	return true
}

// linksDown names the links that are down and that may have had the host's default route.
func (d *Doctor) linksDown() (down []string) {
	links, _ := rtnl.Links(d.Host)
	for _, l := range links {
		if l.Ethernet && !l.Up && l.Master == 0 && l.Kind != "bridge" && !identity.OfGroup(l.Group) {
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
		if d.Gone(c) {
			continue
		}
		for _, own := range attached.OwnAddresses(c) {
			has := func(a rtnl.LinkAddr) bool { return a.Prefix.Addr() == own.Addr() }
			i := slices.IndexFunc(addrs, has)
			if i < 0 {
				continue
			}
			l, err := rtnl.LinkByIndex(d.Host, addrs[i].Link)
			if err != nil {
				continue
			}
			what := fmt.Sprintf("link %s of the host has the address %v of a container", l.Name, own.Addr())
			d.add(HostHasAddress, OnHost, what, affects(c), "ADDRESS/PREFIX", addrs[i].Prefix.String(), "LINK", l.Name)
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
	all, err := procsys.Get(d.Host, "net/ipv4/ip_forward")
	if err != nil {
		d.Unexamined("%v", err)
		return
	}
	if all == "0" {
		if !d.differs("Forwarding") {
			d.add(ForwardingOff, "host", "net/ipv4/ip_forward is 0, want 1", affectsAll(routed), "KEY",
				"net/ipv4/ip_forward")
		}
		return
	}
	uplink, err := rtnl.Egress(d.Host)
	if err != nil {
		uplink = nil
	}
	for _, c := range routed {
		_, link := d.wayIn(c)
		names := []string{link}
		if uplink != nil {
			names = append(names, uplink.Name)
		}
		for _, name := range names {
			key := "net/ipv4/conf/" + name + "/forwarding"
			if v, err := procsys.Get(d.Host, key); err == nil && v == "0" {
				d.add(ForwardingOff, name, key+" is 0", affects(c), "KEY", key)
			}
		}
	}
}

func (d *Doctor) ofConntrack() { d.conntrack("/proc/sys/net/netfilter/") }

// conntrack compares the number of tracked connections with its limit.
func (d *Doctor) conntrack(dir string) {
	read := func(name string) (int, error) {
		b, err := os.ReadFile(dir + name)
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(string(b)))
	}
	count, err := read("nf_conntrack_count")
	if errors.Is(err, fs.ErrNotExist) { // the module is not loaded, so there are no connections
		return
	}
	most, err2 := read("nf_conntrack_max")
	if err = errors.Join(err, err2); err != nil {
		d.Unexamined("the connection tracking table: %v", err)
		return
	}
	what := strconv.Itoa(count) + " of " + strconv.Itoa(most) + " connections"
	more := []string{"MORE", strconv.Itoa(2 * most)}
	switch {
	case most > 0 && count >= most:
		d.add(ConntrackFull, "host", what, nil, more...)
	case most > 0 && count >= most/10*9:
		d.add(ConntrackNear, "host", what, nil, more...)
	}
}

func (d *Doctor) ofNeighbours() { d.neighbours("/proc") }

// neighbours compares the size of the neighbour tables, which all namespaces share, with their limit.
func (d *Doctor) neighbours(proc string) {
	for _, t := range [][2]string{{"ipv4", "arp_cache"}, {"ipv6", "ndisc_cache"}} {
		limit, err := os.ReadFile(proc + "/sys/net/" + t[0] + "/neigh/default/gc_thresh3")
		if err != nil {
			continue // only the machine's first namespace has this file
		}
		most, err := strconv.Atoi(strings.TrimSpace(string(limit)))
		stat, err2 := os.ReadFile(proc + "/net/stat/" + t[1])
		_, rows, _ := strings.Cut(string(stat), "\n")
		if f := strings.Fields(rows); err == nil && err2 == nil && len(f) > 0 {
			if n, err := strconv.ParseInt(f[0], 16, 64); err == nil && most > 0 && int(n) >= most {
				d.add(NeighbourTableFull, OnHost, strconv.Itoa(int(n))+" of "+strconv.Itoa(most)+" neighbours of "+
					t[0], nil, "FAMILY", t[0], "MORE", strconv.Itoa(4*most))
			}
		}
	}
}

// wayIn returns an address of a container, IPv4 if it has one, and the link by which its packets reach the host: the
// bridge, or the host-side interface. The link is empty if there is none, as for macvlan.
func (d *Doctor) wayIn(c attach.Cached) (a netip.Addr, link string) {
	if c.Result == nil {
		return a, ""
	}
	for _, p := range attached.OwnAddresses(c) {
		if !a.IsValid() || !a.Is4() && p.Addr().Is4() {
			a = p.Addr()
		}
	}
	for _, i := range c.Result.Interfaces {
		if i.Sandbox != "" {
			continue
		}
		l, err := rtnl.LinkByName(d.Host, i.Name)
		if err != nil {
			continue
		}
		if link = l.Name; l.Master != 0 {
			if m, err := rtnl.LinkByIndex(d.Host, l.Master); err == nil {
				return a, m.Name
			}
		}
		if l.Kind == "bridge" {
			return a, link
		}
	}
	return a, link
}
