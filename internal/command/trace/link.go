package trace

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// transmit sends the packet out by a link of a place, to the next hop.
func (w *walk) transmit(p *place, l *rtnl.Link, next netip.Addr) {
	w.leaveUntranslated(p, l)
	w.atDevice(p, l, false)
	if !w.isUp(p, l) {
		return
	}
	copy(w.p.SrcMAC[:], l.MAC)
	w.p.DstMAC = [6]byte{}
	w.known = w.neighbour(p, l, next)
	if l.Ethernet {
		w.nextHops = append(w.nextHops, nextHop{p, l, next})
	}
	if w.known != nil {
		copy(w.p.DstMAC[:], w.known.MAC)
	}
	switch l.Kind {
	case "veth":
		far, peer := w.peer(p, l)
		switch {
		case peer == nil && p.netns != "":
			w.unknown(p, "link", Advice{}, "the other end of %s is in a network namespace that is not known here",
				l.Name)
			return
		case peer == nil && !l.Operational:
			w.stop(p, "link", Advice{}, "link %s has no carrier: its other end is down", l.Name)
			return
		case peer == nil:
			has := func(c Container) bool { return next.IsValid() && c.Addr == next }
			if i := slices.IndexFunc(w.Containers, has); i >= 0 {
				w.arrive(p, "link", "leaves by %s to %s, whose namespace this program may not enter", l.Name,
					w.Containers[i].Name)
				return
			}
			w.leave(p, l, next)
			return
		}
		w.pass(p, "link", "leaves by %s, whose other end is %s of %s", l.Name, peer.Name, far.name)
		w.last().Out = l.Name
		w.enter(far, peer, next)
	case "bridge":
		w.fromBridge(p, l, next)
	case "macvlan", "macvtap", "ipvlan", "ipvtap":
		w.above(p, l, next)
	case "vxlan":
		w.encapsulate(p, l, next)
	default:
		if !l.Operational {
			w.stop(p, "link", Advice{}, "link %s has no carrier", l.Name)
			return
		}
		w.leave(p, l, next)
	}
}

// isUp stops the walk at a link that is down.
func (w *walk) isUp(p *place, l *rtnl.Link) bool {
	if !l.Up {
		w.stop(p, "link", setUp(l), "link %s is down", l.Name)
	}
	return l.Up
}

func setUp(l *rtnl.Link) Advice { return fix("ip link set " + l.Name + " up") }

// leave is the end of what can be seen: the packet leaves the host.
func (w *walk) leave(p *place, l *rtnl.Link, next netip.Addr) {
	unmasqueraded := w.firstUnknown == nil && p.netns == "" && !w.p.Local && w.Wanted != nil &&
		w.Wanted.Masquerades(w.p.Src, w.p.Dst)
	if rule := w.p.Exempt(); unmasqueraded && rule != nil {
		w.stop(p, "filter", fix(rule.Delete()), "leaves by %s with the source %v: table %s chain %s keeps it from "+
			"connection tracking, so nothing masquerades it (rule: %s)", l.Name, w.p.Src, rule.Chain.TableName(),
			rule.Jumped, rule.Rule)
		return
	}
	if unmasqueraded {
		w.stop(p, "link", fix("fairlead repair --firewall"),
			"leaves by %s with the source %v, which the network masquerades, and the rule is missing", l.Name, w.p.Src)
		return
	}
	if w.Left == nil {
		left := w.p
		w.Left = &left
	}
	if l.Ethernet && !next.IsMulticast() {
		if w.answersOutside(p, l, w.p.Src); !w.reachable(p, l, next) {
			return
		}
	}
	w.arrive(p, "link", "leaves by %s to %v, out of sight", l.Name, next)
	w.last().Out = l.Name
}

// leaveUntranslated notes that an answer may not come back.
func (w *walk) leaveUntranslated(p *place, l *rtnl.Link) {
	outside := l.Kind != "bridge" && l.Kind != "veth" && p.netns == ""
	if outside && !w.p.Local && w.p.Src.IsValid() && w.p.Src.IsPrivate() && !w.p.Dst.IsPrivate() {
		w.pass(p, "note",
			"its source %v is not translated: an answer comes only if the network routes that to this host",
			w.p.Src)
	}
}

// neighbour is what a place knows of the next hop; nil is nothing.
func (w *walk) neighbour(p *place, l *rtnl.Link, next netip.Addr) *rtnl.Neighbour {
	list, _ := rtnl.NeighbourMessages(p.ns, rtnl.Family(next), l.Index)
	for _, m := range list {
		if n := m.Neighbour(); n.Addr == next {
			return &n
		}
	}
	return nil
}

// reachable says what is known of a neighbour that cannot be looked at itself.
func (w *walk) reachable(p *place, l *rtnl.Link, next netip.Addr) bool {
	entry := w.known
	ask := look(fmt.Sprintf("ping -c 1 -I %s %v", l.Name, next))
	switch {
	case entry == nil || entry.State == 0:
		w.unknown(p, "neighbour", ask,
			"%v on %s was not asked for its MAC address yet: whether it answers is not known", next,
			l.Name)
	case entry.State&rtnl.Failed != 0:
		w.stop(p, "neighbour", ask, "%v does not answer on %s (neighbour FAILED)", next, l.Name)
		w.last().Out = l.Name
		return false
	case len(entry.MAC) == 0:
		w.unknown(p, "neighbour", ask,
			"%v on %s is being asked for its MAC address and has not answered (neighbour INCOMPLETE)",
			next, l.Name)
	default:
		if mac := conflicting(p, l, entry); mac != nil {
			w.stop(p, "neighbour", fix(fmt.Sprintf(flushPermanent, next)),
				"%s has %v for good at %v, and %v answers on %s", p.name, next, entry.MAC, mac, l.Name)
			return false
		}
		w.pass(p, "neighbour", "%v on %s is at %v", next, l.Name, entry.MAC)
	}
	return true
}

// peer finds the other end of a link, and the place that it is in; nil if that is nowhere known.
func (w *walk) peer(p *place, l *rtnl.Link) (*place, *rtnl.Link) {
	if !l.PeerAway {
		peer, _ := rtnl.LinkByIndex(p.ns, l.Peer)
		return p, peer
	}
	is := func(q *place) bool {
		id, err := rtnl.NSID(p.ns, q.ns)
		return err == nil && id >= 0 && id == l.PeerNS
	}
	host := &place{ns: w.Host, name: "host"}
	if p.netns != "" && is(host) {
		peer, _ := rtnl.LinkByIndex(w.Host, l.Peer)
		return host, peer
	}
	for _, c := range w.Containers {
		if q, err := w.open(c); err == nil && is(q) {
			peer, _ := rtnl.LinkByIndex(q.ns, l.Peer)
			return q, peer
		}
	}
	return nil, nil
}

// enter has a place get a frame by a link. Next is the address that the frame is for, invalid where the place has it.
func (w *walk) enter(p *place, l *rtnl.Link, next netip.Addr) {
	if !w.isUp(p, l) {
		return
	}
	w.atDevice(p, l, true)
	if l.Master != 0 {
		m, err := rtnl.LinkByIndex(p.ns, l.Master)
		switch {
		case err != nil:
			w.unknown(p, "link", Advice{}, "%v", err)
			return
		case m.Kind == "bridge" && l.Port != nil:
			w.bridge(p, l, m, next)
			return
		case m.Kind != "bond" && m.Kind != "team":
			w.unknown(p, "link", Advice{}, "what a link of kind %s (%s) does with it is not followed", m.Kind, m.Name)
			return
		}
		l = m
	}
	if w.answersFor(p, l, next) {
		if !w.staleMAC(p, l, next) && !w.ignoresARP(p, l, next, w.arpSource(), w.known) {
			w.receive(p, l)
		}
		return
	}
	advice := Advice{}
	if p.netns == "" && l.Kind == "veth" && l.Master == 0 { // its bridge is gone
		advice = fix("fairlead repair")
	}
	w.stop(p, "neighbour", advice, "no host answers for %v behind %s: it is no address of %s", next, l.Name, p.name)
}

// atDevice records programs and chains at a link itself as unknown.
func (w *walk) atDevice(p *place, l *rtnl.Link, in bool) {
	w.atPrograms(p, l, in)
	conn, err := nft.Open(p.ns)
	if err != nil {
		return
	}
	chains, _ := conn.BaseChains()
	for _, c := range chains {
		if c.Rules > 0 && slices.Contains(strings.Fields(c.Device), l.Name) {
			w.unknown(p, "filter", Advice{}, "table %s chain %s at device %s is not followed", c.TableName(),
				c.Name, l.Name)
		}
	}
}

// answersFor reports whether a place answers for an address on a link, with ARP or neighbour discovery.
func (w *walk) answersFor(p *place, l *rtnl.Link, next netip.Addr) bool {
	if !next.IsValid() {
		return true
	}
	if next.Is6() {
		addrs, _ := rtnl.Addrs(p.ns, l.Index)
		if rtnl.HasAddr(addrs, next.WithZone("")) {
			return true
		}
		return p.sysctl("net/ipv6/conf/"+l.Name+"/proxy_ndp") == "1"
	}
	if r, err := rtnl.RouteTo(p.ns, next); err == nil && r.Type == rtnl.Local {
		return true
	}
	return p.sysctl("net/ipv4/conf/"+l.Name+"/proxy_arp") == "1"
}

// above is a link that stands on another one, past all that the host's IP does.
func (w *walk) above(p *place, l *rtnl.Link, next netip.Addr) {
	base, below := w.peer(p, l)
	if below == nil {
		w.unknown(p, "link", Advice{}, "the link that %s stands on is in a network namespace that is not known here",
			l.Name)
		return
	}
	w.pass(p, "link", "leaves by %s, a %s on %s of %s, past the routes and filters there", l.Name, l.Kind,
		below.Name, base.name)
	addrs, _ := rtnl.Addrs(base.ns, below.Index)
	switch {
	case rtnl.HasAddr(addrs, next):
		w.stop(base, "link", Advice{}, "%v is %s's own address on %s, which a %s does not reach", next, base.name,
			below.Name, l.Kind)
	case !below.Up || !below.Operational:
		advice := Advice{}
		if !below.Up {
			advice = setUp(below)
		}
		w.stop(base, "link", advice, "link %s is down or has no carrier", below.Name)
	default:
		for _, c := range w.Containers {
			q, err := w.open(c)
			if err != nil || q == p {
				continue
			}
			if target := w.linkWith(q, next); target != nil && target.Kind == l.Kind && target.Peer == l.Peer {
				w.enter(q, target, next)
				return
			}
		}
		w.leave(p, l, next)
	}
}

// linkWith is the link of a place that has an address.
func (w *walk) linkWith(p *place, a netip.Addr) *rtnl.Link {
	addrs, err := rtnl.AllAddrs(p.ns)
	i := slices.IndexFunc(addrs, func(x rtnl.LinkAddr) bool { return x.Prefix.Addr() == a.WithZone("") })
	if err != nil || i < 0 {
		return nil
	}
	l, _ := rtnl.LinkByIndex(p.ns, addrs[i].Link)
	return l
}

// staleMAC reports whether the sender has another MAC address for the next hop than that of l, and will not ask again.
func (w *walk) staleMAC(p *place, l *rtnl.Link, next netip.Addr) bool {
	none, sent := [6]byte{}, w.p.DstMAC
	copy(w.p.DstMAC[:], l.MAC)
	switch {
	case !l.Ethernet || sent == none || w.known == nil || bytes.Equal(sent[:], l.MAC):
	case w.known.State&permanent != 0:
		sender := w.nextHops[len(w.nextHops)-1].at
		w.stop(sender, "neighbour", fix(fmt.Sprintf(flushPermanent, next)),
			"the sender has %v for good at %v, and %s is at %v", next, w.known.MAC, l.Name, l.MAC)
		return true
	default:
		w.pass(p, "neighbour",
			"the sender believes %v at %v, and %s is at %v: packets are lost until it asks again", next,
			w.known.MAC, l.Name, l.MAC)
	}
	return false
}
