package trace

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// bridge has a bridge of a place get a frame by one of its ports.
func (w *walk) bridge(p *place, port, br *rtnl.Link, next netip.Addr) {
	if !w.takesIn(p, port, br) {
		return
	}
	vlan := w.vlanOf(p, port, br)
	top := w.onBridge(p, br, vlan)
	up := top != nil && w.answersFor(p, top, next)
	if up && next.IsValid() && (w.staleMAC(p, top, next) || w.ignoresARP(p, top, next, w.arpSource(), w.known)) {
		return
	}
	var out exit
	if !up {
		if out = w.portTo(p, br, next, vlan); out.port == nil {
			w.unknownPort(p, br, port, next)
			return
		}
	}
	if !w.resolves(p, port, out.port, next) {
		return
	}
	w.entered(p, port)
	if !w.filter(p, packetfilter.Prerouting, true) {
		return
	}
	filtered := w.bridgeFiltersIP(p)
	if filtered {
		dst, kept := w.p.Dst, false
		if kept, next = w.prerouted(p, br, next); w.Verdict == Stops || w.unknownDst {
			return
		}
		if kept { // what is translated stays a frame where it comes back to the bridge
			if out = w.portTo(p, br, next, vlan); out.port == nil {
				w.unknownPort(p, br, port, next)
				return
			}
		}
		up = !kept && (up || w.p.Dst != dst && top != nil)
	}
	if !up {
		if w.across(p, port, out.port, br, filtered) {
			w.outOf(p, br, out, next, filtered)
		}
		return
	}
	w.pass(p, "bridge", "bridge %s takes it in from port %s", br.Name, port.Name)
	frame := w.p
	if w.p.In = port.Name; !w.filter(p, packetfilter.Input, true) {
		return
	}
	if !w.isUp(p, top) {
		return
	}
	w.atDevice(p, top, true)
	if !filtered {
		w.receive(p, top)
		return
	}
	w.p = frame
	w.routed(p, top)
}

// takesIn reports whether a bridge takes frames in from a port, and stops the walk where it does not.
func (w *walk) takesIn(p *place, port, br *rtnl.Link) bool {
	if !br.Up {
		w.stop(p, "bridge", setUp(br), "bridge %s is down", br.Name)
		return false
	}
	if !port.Port.Forwarding {
		w.stop(p, "bridge", fix("bridge link set dev "+port.Name+" state 3"),
			"port %s of bridge %s does not forward",
			port.Name, br.Name)
		return false
	}
	return true
}

// resolves reports whether the filters of a bridge let the sender ask for the MAC address of the next hop, where it has
// to, and let the answer pass: on the way from one port to another one, in, or out. A link that is nil is the host.
func (w *walk) resolves(p *place, from, to *rtnl.Link, next netip.Addr) bool {
	if !next.IsValid() || w.known != nil && len(w.known.MAC) > 0 {
		return true
	}
	ask := packetfilter.Packet{Src: w.p.Src, Dst: next, SrcMAC: w.p.SrcMAC, ARP: true}
	if from == nil && !w.p.Local {
		ask.Src = netip.Addr{} // one of the bridge's own
	}
	answer := packetfilter.Packet{Src: next, Dst: ask.Src, DstMAC: ask.SrcMAC, ARP: true, Reply: true}
	if next.Is6() {
		group := next.As16()
		copy(group[:], []byte{0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff}) // its solicited-node address, RFC 4861
		ask.ARP, ask.Dst, ask.Proto, ask.ICMP = false, netip.AddrFrom16(group), kernel.ICMPv6, 135
		answer.ARP, answer.Reply, answer.Proto, answer.ICMP = false, false, kernel.ICMPv6, 136
	}
	return w.crosses(p, from, to, ask, fmt.Sprintf("the question for the MAC address of %v", next)) &&
		w.crosses(p, to, from, answer, fmt.Sprintf("the answer with the MAC address of %v", next))
}

// crosses reports whether the filters of a bridge let a frame pass that the packet waits for.
func (w *walk) crosses(p *place, from, to *rtnl.Link, frame packetfilter.Packet, what string) bool {
	hooks := []int{packetfilter.Prerouting, packetfilter.Forward, packetfilter.Postrouting}
	switch {
	case to == nil:
		hooks = []int{packetfilter.Prerouting, packetfilter.Input}
	case from == nil:
		hooks, frame.Local = []int{packetfilter.Output, packetfilter.Postrouting}, true
	}
	if from != nil {
		frame.In = from.Name
	}
	for _, hook := range hooks {
		if to != nil && hook != packetfilter.Prerouting {
			frame.Out = to.Name
		}
		verdicts, after, err := packetfilter.ThroughBridge(p.ns, hook, frame)
		if err != nil {
			w.unknown(p, "filter", Advice{}, "bridge %s: the packet filter could not be read: %v", hookName(hook), err)
			return true
		}
		frame = after
		for _, v := range verdicts {
			text := fmt.Sprintf("bridge %s: %s is %v", hookName(hook), what, v)
			switch v.Outcome {
			case packetfilter.Dropped:
				w.stop(p, "neighbour", Advice{}, "%s", text)
				w.decisive = w.last()
				w.decisive.Verdict = &v
				return false
			case packetfilter.Undecided:
				w.unknown(p, "neighbour", Advice{}, "%s", text)
			}
		}
	}
	return true
}

// prerouted has a frame pass prerouting of IP on its bridge, and reports whether it is translated there to what is
// behind the bridge, and the next hop then.
func (w *walk) prerouted(p *place, br *rtnl.Link, next netip.Addr) (kept bool, to netip.Addr) {
	dst := w.p.Dst
	w.p.In = br.Name
	if !w.filter(p, packetfilter.Prerouting, false) {
		w.unknownDst = true
		return false, next
	}
	if w.p.Dst == dst {
		return false, next
	}
	r, err := rtnl.RouteFor(p.ns, rtnl.Packet{Src: w.p.Src, Dst: w.p.Dst, In: br.Index, Mark: w.p.Mark})
	if err != nil || r.Type != rtnl.Unicast || r.Link != br.Index {
		return false, next
	}
	w.pass(p, "route", "%s", routeText(r, br, w.p.Dst))
	return true, hopTo(r, w.p.Dst)
}

// fromBridge sends a packet of a place itself out of one of a bridge's ports.
func (w *walk) fromBridge(p *place, br *rtnl.Link, next netip.Addr) {
	vlan := w.vlanOf(p, br, br)
	out := w.portTo(p, br, next, vlan)
	if out.port == nil {
		if w.reachable(p, br, next) && w.floods(p, br, next) {
			w.arrive(p, "bridge", "leaves by a port of bridge %s to %v, out of sight", br.Name, next)
		}
		return
	}
	if !w.resolves(p, nil, out.port, next) {
		return
	}
	w.p.In, w.p.Out = "", out.port.Name
	if !w.filter(p, packetfilter.Output, true) {
		return
	}
	w.outOf(p, br, out, next, false)
}

// floods records as unknown a frame for a MAC address that a bridge has not learnt: the bridge sends it out of all
// ports. It reports whether the bridge has one.
func (w *walk) floods(p *place, br *rtnl.Link, next netip.Addr) bool {
	if w.p.DstMAC == [6]byte{} {
		return true // the sender has to ask first
	}
	links, err := rtnl.Links(p.ns)
	isPort := func(l *rtnl.Link) bool { return l.Master == br.Index && l.Up }
	if err == nil && !slices.ContainsFunc(links, isPort) {
		w.stop(p, "bridge", Advice{}, "bridge %s has no port that is up, and %v was behind one", br.Name, next)
		return false
	}
	w.unknown(p, "bridge", Advice{},
		"bridge %s does not know a port for %v at %v any more: it sends the packet out of all", br.Name, next,
		w.known.MAC)
	return true
}

// across takes a frame from one port to another, through the filters of bridges and, if filtered, of IP.
func (w *walk) across(p *place, from, to, br *rtnl.Link, filtered bool) bool {
	switch {
	case from.Index == to.Index && !from.Port.Hairpin:
		w.stop(p, "bridge", fix("bridge link set dev "+from.Name+" hairpin on"),
			"bridge %s sends nothing back out of port %s: hairpin is off", br.Name, from.Name)
		return false
	case from.Port.Isolated && to.Port != nil && to.Port.Isolated:
		w.stop(p, "bridge", fix("bridge link set dev "+from.Name+" isolated off"),
			"ports %s and %s of bridge %s are isolated from each other", from.Name, to.Name, br.Name)
		return false
	}
	w.pass(p, "bridge", "bridge %s: from port %s to port %s", br.Name, from.Name, to.Name)
	w.p.In, w.p.Out = from.Name, to.Name
	if !w.filter(p, packetfilter.Forward, true) {
		return false
	}
	if filtered {
		w.p.In, w.p.Out = br.Name, br.Name
		if !w.filter(p, packetfilter.Forward, false) {
			return false
		}
		w.p.In, w.p.Out = from.Name, to.Name
	}
	return true
}

// bridgeFiltersIP reports whether frames on bridges pass the filters of IP, too.
func (w *walk) bridgeFiltersIP(p *place) bool {
	key := "net/bridge/bridge-nf-call-iptables"
	if w.p.Dst.Is6() {
		key = "net/bridge/bridge-nf-call-ip6tables"
	}
	return p.sysctl(key) == "1"
}

// outOf has a frame leave a bridge by a port.
func (w *walk) outOf(p *place, br *rtnl.Link, out exit, next netip.Addr, filtered bool) {
	to := out.port
	if !w.filter(p, packetfilter.Postrouting, true) {
		return
	}
	if filtered {
		w.p.In, w.p.Out = br.Name, br.Name
		if !w.filter(p, packetfilter.Postrouting, false) {
			return
		}
	}
	w.atDevice(p, to, false)
	switch {
	case !to.Up:
		w.stop(p, "link", setUp(to), "port %s of bridge %s is down", to.Name, br.Name)
	case out.end != nil:
		w.pass(p, "bridge", "leaves bridge %s by port %s to %s of %s", br.Name, to.Name, out.end.Name, out.to.name)
		w.enter(out.to, out.end, next)
	case !to.Operational:
		w.stop(p, "link", Advice{}, "port %s of bridge %s has no carrier", to.Name, br.Name)
	default:
		w.arrive(p, "bridge", "leaves bridge %s by port %s to %v, out of sight", br.Name, to.Name, next)
	}
}

// An exit is the port by which a frame leaves a bridge, and the container behind it, if that is known here, with the
// link by which the frame comes in there.
type exit struct {
	port *rtnl.Link
	to   *place
	end  *rtnl.Link
}

// portTo finds the port of a bridge that leads to an address: to a container that is known here, or where the bridge
// has learnt its MAC address. The exit has no port if there is none.
func (w *walk) portTo(p *place, br *rtnl.Link, next netip.Addr, vlan uint16) exit {
	for _, c := range w.Containers {
		q, err := w.open(c)
		if err != nil {
			continue
		}
		l := w.linkWith(q, next)
		if l == nil || l.Kind != "veth" {
			continue
		}
		at, end := w.peer(q, l)
		isPort := end != nil && (at.ns == p.ns || at.netns == p.netns) && end.Master == br.Index
		if isPort && w.vlanOf(p, end, br) == vlan {
			return exit{end, q, l}
		}
	}
	if w.p.DstMAC == [6]byte{} {
		return exit{}
	}
	index, err := rtnl.PortOf(p.ns, br.Index, w.p.DstMAC[:])
	if err != nil || index == 0 {
		return exit{}
	}
	port, _ := rtnl.LinkByIndex(p.ns, index)
	return exit{port: port}
}

// unknownPort says what is known of a next hop that no port of a bridge is known to lead to.
func (w *walk) unknownPort(p *place, br, port *rtnl.Link, next netip.Addr) {
	if k := w.known; k != nil && k.State&rtnl.Failed != 0 {
		w.stop(p, "neighbour", Advice{}, "%v does not answer on bridge %s: the sender has asked (neighbour FAILED)",
			next, br.Name)
		return
	}
	if w.p.DstMAC != [6]byte{} {
		w.unknown(p, "bridge", Advice{},
			"bridge %s has not learnt where %v is: it sends the packet out of all ports but %s", br.Name,
			next, port.Name)
		return
	}
	w.unknown(p, "bridge", Advice{}, "no link on bridge %s is known to have %v: whether a host answers is not known",
		br.Name, next)
}

// vlanOf is the VLAN that untagged frames of a port are in; zero where the bridge keeps none apart.
func (w *walk) vlanOf(p *place, port, br *rtnl.Link) uint16 {
	if !br.Data.Filtering {
		return 0
	}
	list, _ := rtnl.PortVLANs(p.ns, port.Index)
	if i := slices.IndexFunc(list, func(v rtnl.PortVLAN) bool { return v.PVID }); i >= 0 {
		return list[i].First
	}
	return 0
}

// onBridge is the link by which a place itself is in a VLAN of a bridge; nil if it is not.
func (w *walk) onBridge(p *place, br *rtnl.Link, vlan uint16) *rtnl.Link {
	if vlan == 0 || w.vlanOf(p, br, br) == vlan {
		return br
	}
	links, _ := rtnl.Links(p.ns)
	i := slices.IndexFunc(links, func(l *rtnl.Link) bool {
		return l.Kind == "vlan" && l.Peer == br.Index && !l.PeerAway && l.Data.VLAN == vlan
	})
	if i < 0 {
		return nil
	}
	return links[i]
}
