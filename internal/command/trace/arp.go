package trace

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

const (
	permanent      = rtnl.Permanent | rtnl.NoARP          // states of a neighbour that gets no ARP request
	claimTime      = 300 * time.Millisecond               // that a neighbour has to answer a question, of two
	scopeHost      = uint8(254)                           // of an address, RT_SCOPE_HOST
	flushPermanent = "ip neigh flush to %v nud permanent" // has the neighbour asked again
)

// arpIgnored is the command that has a place answer ARP requests for an IPv4 address of its own on a link, where
// arp_ignore keeps it from that; empty where it answers. From is the source of the requests; invalid is any.
func arpIgnored(p *place, l *rtnl.Link, a, from netip.Addr) string {
	if r, err := rtnl.RouteTo(p.ns, a); !a.Is4() || !l.Ethernet || err != nil || r.Type != rtnl.Local {
		return ""
	}
	level, set := 0, []string{"sysctl -w"}
	for _, of := range []string{"all", l.Name} {
		key := "net/ipv4/conf/" + of + "/arp_ignore"
		if n, _ := strconv.Atoi(p.sysctl(key)); n > 0 {
			level, set = max(level, n), append(set, key+"=0")
		}
	}
	all, err := rtnl.AllAddrs(p.ns)
	answers := err != nil || slices.ContainsFunc(all, func(x rtnl.LinkAddr) bool {
		switch own := x.Prefix.Addr() == a; level {
		case 1:
			return own && x.Link == l.Index
		case 2:
			return own && x.Link == l.Index && (!from.IsValid() || x.Prefix.Contains(from))
		case 3:
			return own && x.Scope != scopeHost
		}
		return level != 8
	})
	if answers {
		return ""
	}
	return strings.Join(set, " ")
}

// ignoresARP reports whether the packet stops because a place does not answer ARP requests for an address on a link,
// and the sender, whose entry of the neighbour is known, has to send one.
func (w *walk) ignoresARP(p *place, l *rtnl.Link, next, from netip.Addr, known *rtnl.Neighbour) bool {
	if known != nil && known.State&permanent != 0 {
		return false
	}
	set := arpIgnored(p, l, next, from)
	if set == "" {
		return false
	}
	const text = "arp_ignore keeps %s from answering for %v on %s: "
	if known != nil && len(known.MAC) > 0 && known.State&rtnl.Failed == 0 {
		w.unknown(p, "neighbour", fix(set), text+"packets are lost when the sender asks again", p.name, next,
			l.Name)
		return false
	}
	w.stop(p, "neighbour", fix(set), text+"the sender does not learn the MAC address", p.name, next, l.Name)
	return true
}

// arpSource is the source of the sender's ARP requests; invalid where that is not known.
func (w *walk) arpSource() (none netip.Addr) {
	if !w.p.Local {
		return none
	}
	return w.p.Src
}

// answersOutside records as unknown an address of a place's link for which the place does not answer on the link.
func (w *walk) answersOutside(p *place, l *rtnl.Link, a netip.Addr) {
	own, _ := rtnl.Addrs(p.ns, l.Index)
	if !rtnl.HasAddr(own, a) {
		return
	}
	if set := arpIgnored(p, l, a, netip.Addr{}); set != "" {
		w.unknown(p, "neighbour", fix(set), "arp_ignore keeps %s from answering for %v on %s: who asks for its "+
			"MAC address there sends it nothing", p.name, a, l.Name)
	}
}

// conflicting asks for the MAC address of a neighbour whose entry is permanent, and returns another one that answers.
func conflicting(p *place, l *rtnl.Link, entry *rtnl.Neighbour) net.HardwareAddr {
	if entry.State&permanent == 0 {
		return nil
	}
	n, err := packet.ListenNeighbours(p.ns, l, entry.Addr.Is6())
	if err != nil {
		return nil
	}
	defer func() { go n.Close() }() // Close waits for a grace period of the kernel
	for range 2 {
		if n.Ask(entry.Addr) != nil {
			return nil
		}
		for until := time.Now().Add(claimTime); ; {
			c, ok, err := n.Next(context.Background(), until)
			switch {
			case err != nil:
				return nil
			case ok && c.Addr == entry.Addr && !c.Probe && bytes.Equal(c.MAC, entry.MAC):
				return nil
			case ok && c.Addr == entry.Addr && !c.Probe:
				return c.MAC
			}
			if !ok {
				break
			}
		}
	}
	return nil
}

// replyRouted reports whether what comes in answer finds its way from a place to the one before it.
func (w *walk) replyRouted(p *place) bool {
	src := w.p.Src
	if !src.IsValid() || src.IsLoopback() || src.IsLinkLocalUnicast() {
		return true
	}
	r, err := rtnl.RouteTo(p.ns, src)
	if err != nil {
		if kernel.Unanswered(err) {
			return true
		}
		w.pass(p, "note", "what comes in answer goes to %v", src)
		sent := w.p
		w.p.Src, w.p.Dst = sent.Dst, sent.Src
		w.noRoute(p, nil, err)
		w.p = sent
		return w.Verdict != Stops
	}
	l, err := rtnl.LinkByIndex(p.ns, r.Link)
	before := w.before(p)
	if err != nil || r.Type != rtnl.Unicast || before == nil {
		return true
	}
	next := hopTo(r, src)
	to, known := w.linkWith(before, next), w.neighbour(p, l, next)
	switch {
	case to == nil || !to.Ethernet:
	case known != nil && known.State&permanent != 0 && len(known.MAC) > 0 && !bytes.Equal(known.MAC, to.MAC):
		w.stop(p, "neighbour", fix(fmt.Sprintf(flushPermanent, next)),
			"what comes in answer is lost: %s has %v for good at %v, and %s of %s is at %v", p.name, next, known.MAC,
			to.Name, before.name, to.MAC)
		return false
	default:
		return !w.ignoresARP(before, to, next, netip.Addr{}, known)
	}
	return true
}

// before is the place from which the packet came into p; nil where that is out of sight.
func (w *walk) before(p *place) *place {
	for _, at := range slices.Backward(w.passages) {
		if at.at.netns != p.netns {
			return at.at
		}
	}
	return nil
}
