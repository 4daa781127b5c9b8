package inspect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/doctor"
	"github.com/fairlead-cni/fairlead/internal/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

func endOf(l *rtnl.Link, where string) linkEnd {
	return linkEnd{Name: l.Name, Where: where, Kind: l.Kind, MAC: l.MAC.String(), MTU: l.MTU, Up: l.Up}
}

// portsSeen adds the published ports of an attachment, and which processes listen on them in its container.
func (i *Inspected) portsSeen(ns *kernel.NS, c attach.Cached, holder func(inode uint32) string) {
	for _, m := range attached.Mappings(c.Capabilities) {
		p := inspectedPort{Port: m.String(), Listeners: []string{}}
		if listeners, err := sockdiag.Listeners(ns, m.Number(), uint16(m.ContainerPort)); err == nil {
			for _, l := range listeners {
				p.Listeners = append(p.Listeners, fmt.Sprintf("%s listens on %v", holder(l.Inode), l.At))
			}
		}
		i.Ports = append(i.Ports, p)
	}
}

// LinkSeen adds the container interface of an attachment with its addresses and routes. It returns nil if there is
// no interface.
func LinkSeen(d *doctor.Doctor, ns *kernel.NS, c attach.Cached, i *Inspected) *rtnl.Link {
	l, err := rtnl.LinkByName(ns, c.IfName)
	if err != nil {
		i.Links = append(i.Links, linkEnd{Name: c.IfName, Where: "container", Missing: true})
		return nil
	}
	i.Links = append(i.Links, endOf(l, "container"))
	addrs, err := rtnl.Addrs(ns, l.Index)
	if err != nil {
		d.Unexamined("the addresses of %s: %v", attached.ShortOwner(c), err)
	}
	for _, a := range addrs {
		i.Addresses = append(i.Addresses, a.Prefix.String())
	}
	for _, family := range []uint8{rtnl.IPv4, rtnl.IPv6} {
		routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable, Link: l.Index})
		if err != nil {
			d.Unexamined("the routes of %s: %v", attached.ShortOwner(c), err)
		}
		for _, r := range routes {
			i.Routes = append(i.Routes, RouteText(r))
		}
	}
	return l
}

// RouteText returns a route in the words of ip(8).
func RouteText(r rtnl.Route) string {
	words := []string{r.Dst.String()}
	if r.Dst.Bits() == 0 {
		words[0] = "default"
	}
	if r.Via.IsValid() {
		words = append(words, "via "+r.Via.String())
	}
	if r.Src.IsValid() {
		words = append(words, "src "+r.Src.String())
	}
	if r.Priority != 0 {
		words = append(words, fmt.Sprintf("metric %d", r.Priority))
	}
	return strings.Join(words, " ")
}

// HostEnds returns the links of the host that an attachment uses: the host-side interface or the master, and the
// bridge it is a port of.
func HostEnds(d *doctor.Doctor, c attach.Cached, inner *rtnl.Link) (ends []linkEnd) {
	if c.Result == nil {
		return nil
	}
	var near *rtnl.Link
	var bridge *linkEnd
	links, off := repair.Links(d.World, &c)
	for _, w := range off {
		e := linkEnd{Name: w.Want, Where: doctor.OnHost, Missing: true}
		switch {
		case !w.LacksLink():
		case w.Want == doctor.BridgeOf(c):
			e.Kind = "bridge"
			bridge = &e
		default:
			ends = append(ends, e)
		}
	}
	for _, l := range links {
		if l.Kind != "bridge" {
			near = l
			continue
		}
		e := endOf(l, doctor.OnHost)
		bridge = &e
	}
	if near == nil && len(ends) == 0 && inner != nil && inner.Peer != 0 && inner.PeerAway {
		near, _ = rtnl.LinkByIndex(d.Host, inner.Peer)
	}
	if near != nil {
		ends = append(ends, endOf(near, doctor.OnHost))
		if master, err := rtnl.LinkByIndex(d.Host, near.Master); err == nil && near.Master != 0 {
			return append(ends, endOf(master, doctor.OnHost))
		}
	}
	if bridge != nil {
		bridge.Cut = true
		ends = append(ends, *bridge)
	}
	return ends
}

// Listening returns which processes listen in a namespace, and where.
func Listening(ns *kernel.NS, holder func(inode uint32) string) (lines []string) {
	for _, proto := range []byte{kernel.TCP, kernel.UDP} {
		all, err := sockdiag.AllListeners(ns, proto)
		if err != nil {
			continue
		}
		for _, l := range all {
			line := fmt.Sprintf("%s listens on %v/%s", holder(l.Inode), l.At, kernel.ProtoName(proto))
			if l.At.Port() != 0 && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
