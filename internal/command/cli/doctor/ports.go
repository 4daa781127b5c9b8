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
	addrs, err := rtnl.AllAddrs(d.Host)
	for _, c := range d.Selected {
		if d.Gone(c) || c.Result == nil {
			continue
		}
		for _, m := range attached.Mappings(c.Capabilities) {
			d.taken(c, m)
			d.translated(c, m)
			a := m.Host()
			has := m.Everywhere() || a.IsLoopback() || rtnl.HasAddr(addrs, a)
			if err == nil && !has {
				where := a.String()
				d.add(PublishedAddressMissing, where, "", affects(c, "publishes "+m.String()), "ADDRESS", where)
			}
		}
	}
}

// taken adds a finding if a process of the host listens on a published port.
func (d *Doctor) taken(c attach.Cached, m attached.PortMapping) {
	listeners, err := m.Listening(d.Host)
	if err != nil {
		d.Unexamined("which ports of the host have a listener: %v", err)
	}
	port := strconv.Itoa(m.HostPort)
	for _, l := range listeners {
		what := fmt.Sprintf("%s listens on %v", d.Holder(l.Inode), l.At)
		d.add(PublishedPortTaken, "port "+port+"/"+m.Protocol, what, affects(c, m.String()), "PORT", port)
	}
}

// publishes is the priority at which the table inet fairlead translates packets for published ports
// (docs/nftables.md).
const publishes = -99

// arriving returns the packet of a client of another host to a published port; ok is false if there is none. If the
// port is published on all addresses, it is for one of the uplink.
func (d *Doctor) arriving(c attach.Cached, m attached.PortMapping) (p packetfilter.Packet, ok bool) {
	uplink, err := rtnl.Egress(d.Host)
	if err != nil {
		return p, false
	}
	to := m.Host()
	if m.Everywhere() {
		to = d.AddrOf(uplink, ownAddress(c, m.Host()).Is6())
	}
	p = packetfilter.Packet{In: uplink.Name, Dst: to, Proto: m.Number(), DstPort: uint16(m.HostPort)}
	return p, to.IsValid() && !to.IsLoopback()
}

// translated adds a finding if another program's packet filter takes the packets for a published port.
func (d *Doctor) translated(c attach.Cached, m attached.PortMapping) {
	p, ok := d.arriving(c, m)
	if !ok {
		return
	}
	v, err := packetfilter.Arriving(d.Host, p, publishes, ours)
	if err != nil {
		d.Unexamined("whether another program takes the packets for published ports: %v", err)
		return
	}
	// The reference's plugins publish ports this way for containers that they attach.
	if v.Outcome < packetfilter.Dropped || v.Program == packetfilter.Reference {
		return
	}
	what := fmt.Sprintf("takes the packets for port %d/%s", m.HostPort, m.Protocol)
	d.addWith(PublishedPortDiverted, v.Place(), does(v, what), affects(c, m.String()), undoing(v, m))
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
	to := ownAddress(c, m.Host())
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
		what := fmt.Sprintf("the server listens on %s, and packets are for %v", strings.Join(at, ", "), to)
		d.add(PortLoopbackOnly, where, what, affects(c, "publishes "+m.String()), "NETNS", c.Netns)
	}
}
