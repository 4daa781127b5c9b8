package trace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/internal/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// mostSteps is how many namespaces a packet may enter: more are a loop.
const mostSteps = 16

// route asks for the packet's route. A packet that comes in is one that this place forwards or takes.
func (w *walk) route(p *place, in *rtnl.Link) (r rtnl.Route, out *rtnl.Link, ok bool) {
	q := rtnl.Packet{Src: w.p.Src, Dst: w.p.Dst, Mark: w.p.Mark, Proto: w.p.Proto, SrcPort: w.p.SrcPort,
		DstPort: w.p.DstPort}
	if in != nil {
		q.In = in.Index
	}
	r, err := rtnl.RouteFor(p.ns, q)
	if err != nil {
		w.noRoute(p, in, err)
		return r, nil, false
	}
	if out, err = rtnl.LinkByIndex(p.ns, r.Link); err != nil {
		w.unknown(p, "route", Advice{}, "route to %v: %v", w.p.Dst, err)
		return r, nil, false
	}
	if network := w.unrouted(p); network != "" {
		w.stop(p, "route", look("fairlead cluster status "+network),
			"%s: not to another node of network %s, which has the address, because its route is missing",
			routeText(r, out, w.p.Dst), network)
		return r, out, false
	}
	w.pass(p, "route", "%s", routeText(r, out, w.p.Dst))
	return r, out, true
}

// unrouted names the network that has the packet's destination on another node, while the host has no route to it.
func (w *walk) unrouted(p *place) (network string) {
	if w.Wanted == nil || p.netns != "" {
		return ""
	}
	return w.Wanted.Unrouted(w.p.Dst)
}

func routeText(r rtnl.Route, out *rtnl.Link, dst netip.Addr) string {
	if r.Type == rtnl.Local {
		return fmt.Sprintf("%v is an address of its own", dst)
	}
	words := []string{"route to " + dst.String()}
	if r.Via.IsValid() {
		words = append(words, "via "+r.Via.String())
	}
	words = append(words, "dev "+out.Name)
	if r.Src.IsValid() {
		words = append(words, "src "+r.Src.String())
	}
	return strings.Join(words, " ")
}

// noRoute says why a packet has no route. The kernel's error says it, where it asks more than the routes.
func (w *walk) noRoute(p *place, in *rtnl.Link, err error) {
	var number syscall.Errno
	errors.As(err, &number)
	switch {
	case kernel.Unanswered(err):
		w.unknown(p, "route", Advice{}, "%v", err)
	case number == syscall.EXDEV, number == syscall.EINVAL && in != nil && w.rpFilterDrops(p, in):
		w.stop(p, "route", fix(fmt.Sprintf("sysctl -w net.ipv4.conf.%s.rp_filter=2", in.Name)),
			"rp_filter drops it: the way back to %v is not by %s", w.p.Src, in.Name)
	case number == syscall.EHOSTUNREACH && in != nil && !w.forwards(p, in):
		w.stop(p, "route", fix("sysctl -w net.ipv4.ip_forward=1"),
			"forwarding is off on %s: the packet is for others", in.Name)
	case number == syscall.EACCES:
		w.stop(p, "route", look("ip rule; ip route show table all type prohibit"),
			"a route or a rule prohibits the way to %v",
			w.p.Dst)
	case number == syscall.EINVAL && in != nil:
		w.stop(p, "route", Advice{},
			"the kernel takes %v for a martian address here: that of a source that cannot come in by %s, or "+
				"a route of type blackhole", w.p.Src, in.Name)
	case number == syscall.EINVAL && w.p.Src.IsLoopback():
		w.stop(p, "route", fix("sysctl -w net.ipv4.conf.all.route_localnet=1"),
			"a packet from %v may not leave the host: route_localnet is off", w.p.Src)
	case number == syscall.EINVAL:
		w.stop(p, "route", look("ip route show table all type blackhole"),
			"a route of type blackhole takes what is for %v",
			w.p.Dst)
	case number == syscall.EHOSTUNREACH:
		w.stop(p, "route", look("ip route show table all type unreachable"),
			"a route of type unreachable takes what is for %v",
			w.p.Dst)
	default:
		add, advice := fmt.Sprintf("ip route add %v via ROUTER", w.p.Dst), look
		gateway := w.gateway(p)
		if gateway.IsValid() {
			add, advice = fmt.Sprintf("ip route add default via %v", gateway), fix
		}
		if l := w.downIn(p); l != nil {
			w.stop(p, "link", advice("ip link set "+l.Name+" up && "+inside(p.netns, add)), "link %s is down", l.Name)
			return
		}
		w.stop(p, "route", advice(add), "there is no route to %v", w.p.Dst)
		if _, err := rtnl.RouteTo(p.ns, gateway); gateway.IsValid() && err != nil { // so the kernel refuses the route
			w.Advice = look("fairlead doctor " + p.name)
		}
	}
}

// gateway is that of the default route that a container's network wants it to have.
func (w *walk) gateway(p *place) (none netip.Addr) {
	if p.netns == "" || w.Wanted == nil {
		return none
	}
	return w.Wanted.Gateway(p.netns, w.p.Dst.Is6())
}

// downIn is the first link of a container that is down, which takes routes with it.
func (w *walk) downIn(p *place) *rtnl.Link {
	if p.netns == "" {
		return nil
	}
	links, _ := rtnl.Links(p.ns)
	i := slices.IndexFunc(links, func(l *rtnl.Link) bool { return l.Ethernet && !l.Up })
	if i < 0 {
		return nil
	}
	return links[i]
}

// rpFilterDrops reports whether rp_filter drops the packet: what goes back to its source leaves by another link.
func (w *walk) rpFilterDrops(p *place, in *rtnl.Link) bool {
	strict := false
	for _, of := range []string{"all", in.Name} {
		v := p.sysctl("net/ipv4/conf/" + of + "/rp_filter")
		strict = strict || v != "" && v != "0"
	}
	r, err := rtnl.RouteTo(p.ns, w.p.Src)
	return strict && w.p.Src.Is4() && (err != nil || r.Type == rtnl.Unicast && r.Link != in.Index)
}

// forwards reports whether a place forwards what comes in by a link.
func (w *walk) forwards(p *place, in *rtnl.Link) bool {
	key := "net/ipv4/conf/" + in.Name + "/forwarding"
	if w.p.Dst.Is6() {
		key = "net/ipv6/conf/all/forwarding"
	}
	return p.sysctl(key) != "0"
}

// send has a place send the packet.
func (w *walk) send(p *place) {
	w.p.Local, w.p.Fresh = true, true
	if w.p.Inner == nil { // Live does not tell it from others in the same tunnel
		w.passages = append(w.passages, passage{p, w.p})
	}
	r, out, ok := w.route(p, nil)
	if w.Packet == "" {
		src := w.p
		src.Src = r.Src
		w.Packet = src.String()
	}
	if !ok {
		return
	}
	if !w.p.Src.IsValid() {
		w.p.Src = r.Src
	}
	w.p.Out = out.Name
	before := w.p
	if !w.filter(p, packetfilter.Output, false) {
		return
	}
	if w.p.Dst != before.Dst || w.p.Mark != before.Mark || w.p.Src != before.Src {
		if r, out, ok = w.route(p, nil); !ok {
			return
		}
		w.p.Out = out.Name
	}
	if r.Type != rtnl.Local && w.p.Src.Is6() && w.p.Src.IsLoopback() {
		w.stop(p, "route", Advice{}, "the kernel does not route from ::1 to another interface, so a published port "+
			"does not answer at ::1: use 127.0.0.1 or another address of the host")
		return
	}
	if !w.filter(p, packetfilter.Postrouting, false) {
		return
	}
	if r.Type != rtnl.Local {
		w.transmit(p, out, hopTo(r, w.p.Dst))
		return
	}
	lo, err := rtnl.LinkByName(p.ns, "lo")
	if err != nil || !lo.Up {
		w.stop(p, "link", fix("ip link set lo up"), "link lo is down")
		return
	}
	w.p.In, w.p.Out = lo.Name, ""
	if w.filter(p, packetfilter.Prerouting, false) {
		w.deliver(p)
	}
}

// hopTo is the next hop of a route.
func hopTo(r rtnl.Route, dst netip.Addr) netip.Addr {
	if r.Via.IsValid() {
		return r.Via
	}
	return dst
}

// chooseSource chooses a source address that comes in by l, where none is given: one that no rule is likely to name.
func (w *walk) chooseSource(p *place, l *rtnl.Link) error {
	if w.p.Src.IsValid() {
		return nil
	}
	candidates := []string{"198.51.100.1", "192.0.2.1", "203.0.113.1"}
	if w.p.Dst.Is6() {
		candidates = []string{"2001:db8::1", "2001:db8:ffff::1", "3fff::1"}
	}
	addrs, err := rtnl.Addrs(w.Host, l.Index)
	for _, a := range addrs {
		if a.Prefix.Addr().Is4() == w.p.Dst.Is4() && !a.Prefix.Addr().IsLinkLocalUnicast() {
			first := a.Prefix.Masked().Addr().Next()
			candidates = append(candidates, first.String(), first.Next().String())
		}
	}
	for _, c := range candidates {
		a := netip.MustParseAddr(c)
		if r, err := rtnl.RouteTo(w.Host, a); err == nil && r.Link == l.Index && r.Type == rtnl.Unicast {
			w.p.Src = a
			w.pass(p, "note", "no address of the client was given: %v stands for any that no rule names", a)
			return nil
		}
	}
	return errors.Join(err,
		fmt.Errorf("no address of a client is known that comes in by link %s: name one with --from", l.Name))
}

// receive has a place take a packet that comes in by a link.
func (w *walk) receive(p *place, in *rtnl.Link) {
	if w.steps++; w.steps > mostSteps {
		w.stop(p, "route", Advice{}, "the packet goes round in a circle")
		return
	}
	w.entered(p, in)
	if w.filter(p, packetfilter.Prerouting, false) {
		w.routed(p, in)
	}
}

// entered makes the packet one that comes into a place by a link.
func (w *walk) entered(p *place, in *rtnl.Link) {
	last := len(w.passages) - 1
	w.p = w.p.Entering(in.Name, last >= 0 && w.passages[last].at.netns == p.netns)
	w.passages = append(w.passages, passage{p, w.p})
}

// routed routes what prerouting let pass.
func (w *walk) routed(p *place, in *rtnl.Link) {
	r, out, ok := w.route(p, in)
	switch {
	case !ok:
		return
	case r.Type == rtnl.Local:
		isOuter := w.p.Inner != nil
		if w.deliver(p); w.Verdict == Passes && !isOuter {
			w.replyRouted(p)
		}
		return
	case r.Type != rtnl.Unicast:
		w.stop(p, "route", Advice{}, "%v is an address of broadcast or multicast", w.p.Dst)
		return
	case w.p.Dst.Is6() && !w.forwards(p, in):
		w.stop(p, "route", fix("sysctl -w net.ipv6.conf.all.forwarding=1"),
			"forwarding of IPv6 is off: the packet is for others")
		return
	}
	w.p.Out = out.Name
	before := w.p
	if !w.filter(p, packetfilter.Forward, false) {
		return
	}
	w.answer(p, before)
	if !w.replyRouted(p) || !w.filter(p, packetfilter.Postrouting, false) {
		return
	}
	w.transmit(p, out, hopTo(r, w.p.Dst))
}

// answer records whether other programs' rules let the reply pass prerouting and forward. The packet goes on.
func (w *walk) answer(p *place, sent packetfilter.Packet) {
	hook := hookName(packetfilter.Prerouting)
	verdicts, back, err := packetfilter.Through(p.ns, packetfilter.Prerouting, sent.Answer(w.p))
	v := packetfilter.Verdict{Outcome: packetfilter.Accepted}
	if n := len(verdicts) - 1; n >= 0 && verdicts[n].Outcome == packetfilter.Dropped {
		v = verdicts[n]
	} else if back.Out = sent.In; err == nil {
		hook = hookName(packetfilter.Forward)
		v, err = packetfilter.Forwarded(p.ns, back, "inet fairlead")
	}
	switch {
	case err != nil || v.Outcome == packetfilter.Accepted:
	case v.Outcome == packetfilter.Dropped:
		w.record(p, "answer", Stops, "%s: what comes in answer is %v", hook, v)
		w.last().Verdict = &v
		w.replyDropped = p.name + ": " + w.last().Text
	default:
		w.unknown(p, "answer", Advice{}, "%s: of what comes in answer it is not known: %v", hook, v)
	}
}

// deliver hands the packet to the socket that listens in a place.
func (w *walk) deliver(p *place) {
	w.p.Out = ""
	if !w.filter(p, packetfilter.Input, false) {
		return
	}
	if w.p.Inner != nil {
		w.decapsulate(p)
		return
	}
	if w.p.Proto != kernel.TCP && w.p.Proto != kernel.UDP && w.p.Proto != kernel.SCTP || w.p.DstPort == 0 {
		w.arrive(p, "socket", "the packet arrives at %v", w.p.Dst)
		return
	}
	port := fmt.Sprintf("port %d/%s", w.p.DstPort, kernel.ProtoName(w.p.Proto))
	all, err := sockdiag.Listeners(p.ns, w.p.Proto, w.p.DstPort)
	if err != nil {
		w.unknown(p, "socket", Advice{}, "who listens on %s could not be seen: %v", port, err)
		w.Verdict = Passes
		return
	}
	var at []string
	for _, l := range all {
		if l.Takes(w.p.Dst) {
			who := "a process"
			if w.Holder != nil {
				who = w.Holder(l.Inode)
			}
			w.arrive(p, "socket", "%s listens on %v/%s", who, l.At, kernel.ProtoName(w.p.Proto))
			return
		}
		at = append(at, l.At.String())
	}
	if p.netns == "" && w.Wanted != nil && !w.p.DNAT {
		if c := w.Wanted.Publisher(w.p.Dst, w.p.Proto, w.p.DstPort); c != "" {
			w.stop(p, "socket", fix("fairlead repair --firewall"), "%s publishes %s, and its rule is missing", c, port)
			return
		}
	}
	if len(at) > 0 {
		w.stop(p, "socket", look("ss -lnp"),
			"no process listens on %s of %v, but on %s: have the server listen on 0.0.0.0 or [::]",
			port, w.p.Dst, strings.Join(at, ", "))
		return
	}
	w.stop(p, "socket", look("ss -lnp"), "no process listens on %s", port)
}
