package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/internal/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// ofPorts adds findings about the host's side of published ports.
func (d *Doctor) ofPorts() {
	for _, c := range d.Selected {
		if d.Gone(c) || c.Result == nil {
			continue
		}
		for _, m := range attached.Mappings(c.Capabilities) {
			d.taken(c, m)
			d.addressed(c, m)
			d.translated(c, m)
		}
	}
}

// taken adds a finding if a process of the host listens on a published port.
func (d *Doctor) taken(c attach.Cached, m attached.PortMapping) {
	listeners, err := sockdiag.Listeners(d.Host, m.Number(), uint16(m.HostPort))
	if err != nil {
		d.Unexamined("which ports of the host have a listener: %v", err)
		return
	}
	host, given := netip.ParseAddr(m.HostIP)
	for _, l := range listeners {
		if given != nil || host.IsUnspecified() || l.Takes(host) {
			port := strconv.Itoa(m.HostPort)
			d.add(PublishedPortTaken, "port "+port+"/"+m.Protocol,
				fmt.Sprintf("%s listens on %v", d.Holder(l.Inode), l.At), affects(c, m.String()), "PORT", port)
		}
	}
}

// addressed adds a finding if the host lacks the address that a port is published on.
func (d *Doctor) addressed(c attach.Cached, m attached.PortMapping) {
	a, err := netip.ParseAddr(m.HostIP)
	addrs, err2 := rtnl.AllAddrs(d.Host)
	if err == nil && err2 == nil && !a.IsUnspecified() && !a.IsLoopback() && !rtnl.HasAddr(addrs, a) {
		d.add(PublishedAddressMissing, a.String(), "", affects(c, "publishes "+m.String()), "ADDRESS", a.String())
	}
}

// publishes is the priority at which the table inet fairlead translates packets for published ports
// (docs/nftables.md).
const publishes = -99

// translated adds a finding if another program's packet filter takes the packets for a published port.
func (d *Doctor) translated(c attach.Cached, m attached.PortMapping) {
	to, err := netip.ParseAddr(m.HostIP)
	uplink, none := rtnl.Egress(d.Host)
	if none != nil || to.IsLoopback() {
		return // no packet comes from there
	}
	if err != nil || to.IsUnspecified() {
		if to = d.AddrOf(uplink, target4(c, m).Is6()); !to.IsValid() {
			return
		}
	}
	v, err := packetfilter.Arriving(d.Host, packetfilter.Packet{In: uplink.Name, Dst: to, Proto: m.Number(),
		DstPort: uint16(m.HostPort)}, publishes, ours)
	if err != nil {
		d.Unexamined("whether another program takes the packets for published ports: %v", err)
		return
	}
	if v.Outcome != packetfilter.Translated && v.Outcome != packetfilter.Dropped ||
		v.Program == packetfilter.Reference {
		return // they publish ports this way for containers that they attach
	}
	where, rule := decider(v)
	d.add(PublishedPortDiverted, where, fmt.Sprintf("%s takes the packets for port %d/%s: "+
		"%s", owner(v), m.HostPort,
		m.Protocol,
		rule), affects(c, m.String()), how(undoing(v, m))...)
}

// AddrOf returns an address of a link that other hosts can reach.
func (d *Doctor) AddrOf(l *rtnl.Link, v6 bool) netip.Addr {
	addrs, err := rtnl.Addrs(d.Host, l.Index)
	if err != nil {
		d.Unexamined("the addresses of %s: %v", l.Name, err)
	}
	for _, a := range addrs {
		if a := a.Prefix.Addr(); a.Is6() == v6 && a.IsGlobalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}

// served adds a finding if no server listens in the container on the target of a published port.
func (d *Doctor) served(ns *kernel.NS, c attach.Cached, m attached.PortMapping) {
	listeners, err := sockdiag.Listeners(ns, m.Number(), uint16(m.ContainerPort))
	to := target4(c, m)
	if err != nil || !to.IsValid() {
		return // the kernel does not list SCTP sockets
	}
	where := fmt.Sprintf("port %d/%s", m.ContainerPort, m.Protocol)
	switch {
	case len(listeners) == 0:
		d.add(PortWithoutListener, where, "", affects(c, "publishes "+m.String()), "NETNS", c.Netns)
	case !slices.ContainsFunc(listeners, func(l sockdiag.Listener) bool { return l.Takes(to) }):
		var at []string
		for _, l := range listeners {
			at = append(at, l.At.String())
		}
		d.add(PortLoopbackOnly, where, fmt.Sprintf("the server listens on %s, and packets are for %v",
			strings.Join(at, ", "), to), affects(c, "publishes "+m.String()), "NETNS", c.Netns)
	}
}
