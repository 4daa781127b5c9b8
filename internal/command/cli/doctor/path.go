package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/packetfilter"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// ofPaths follows packets between containers and the host, and to published ports, without sending them. It skips
// containers that have a fault already, because that fault may stop the packets. Then it adds the routes that repair
// reported, for containers whose packets were not seen to stop.
func (d *Doctor) ofPaths() {
	over, onward := evaluating(), map[string]bool{}
	for i, c := range d.Selected {
		if over() {
			d.Unexamined("the paths of packets of %d containers: the time was used up", len(d.Selected)-i)
			break
		}
		if d.Gone(c) || c.Result == nil || c.Netns == "" || d.faulted(c) {
			continue
		}
		t := d.tracer(Traced(c))
		for _, q := range d.questions(c, onward) {
			answer, err := t.Trace(q)
			if err != nil {
				d.Unexamined("the paths of packets of container %s: %v", attached.ShortOwner(c), err)
				break
			}
			d.programs(answer)
			if d.blocked(c, q, answer) {
				break
			}
		}
	}

	for _, w := range d.strays {
		if !d.faulted(w.c) {
			d.addWith(HostPathBlocked, "route", "", affects(w.c, w.Text), look("ip route get "+w.Want))
		}
	}
}

// programs notes the BPF programs on the way of a packet.
func (d *Doctor) programs(answer *trace.Answer) {
	for _, h := range answer.Hops {
		text := h.Place + ": " + h.Text
		if h.Kind == trace.Program && !slices.Contains(d.Notes, text) {
			d.remark("%s", text)
		}
	}
}

// faulted reports whether a finding explains why an attachment's packets do not arrive.
func (d *Doctor) faulted(c attach.Cached) bool {
	isMine := func(a affected) bool { return a.Container == c.Owner().String() }
	return slices.ContainsFunc(d.Findings, func(f *Diagnosed) bool {
		ofServer := f.ID == PortWithoutListener || f.ID == PortLoopbackOnly
		follows := d.kinds[f.rank].causes[HostPathBlocked] != 0
		return f.Severity == fault && !ofServer && !follows && slices.ContainsFunc(f.Containers, isMine)
	})
}

// questions returns packets that must arrive if the host is the container's router: to the host and back, to the host's
// own router, and to each published port. To the router, one container of a link stands for all, unless rules name
// addresses: onward has, by link and router, whether they do.
func (d *Doctor) questions(c attach.Cached, onward map[string]bool) (all []trace.Question) {
	from := Traced(c)
	link := d.hostLink(c)
	uplink, none := rtnl.Egress(d.Host)
	for _, ip := range attached.OwnIPs(c) {
		family, icmp := rtnl.Family(ip.Address.Addr()), trace.ICMP(ip.Address.Addr())
		if link == "" || !ip.Gateway.IsValid() || !d.routes(c, family) {
			continue
		}
		all = append(all, trace.Question{From: &from, Dst: ip.Gateway, Proto: icmp},
			trace.Question{Dst: ip.Address.Addr(), Proto: icmp})
		to := d.router(family)
		if !to.IsValid() || none != nil {
			continue
		}

		way := link + " " + to.String()
		byAddress, followed := onward[way]
		if !followed {
			onward[way] = d.byAddress(packetfilter.Packet{In: link, Out: uplink.Name, Src: ip.Address.Addr()}, family)
		}
		if !followed || byAddress {
			all = append(all, trace.Question{From: &from, Dst: to, Proto: icmp})
		}
	}

	for _, m := range attached.Mappings(c.Capabilities) {
		if p, ok := d.arriving(c, m); ok {
			all = append(all, trace.Question{In: p.In, Dst: p.Dst, Proto: p.Proto, DstPort: p.DstPort})
		}
	}
	return all
}

// byAddress reports whether the way of a packet through the host may depend on its addresses, because of rules of the
// routes or of other programs' packet filters. A filter may set marks by addresses.
func (d *Doctor) byAddress(p packetfilter.Packet, family uint8) bool {
	rules, err := rtnl.Rules(d.Host, family)
	names := func(r rtnl.Rule) bool { return r.From.IsValid() && r.From.Bits() > 0 || r.Mask != 0 }
	if err != nil || slices.ContainsFunc(rules, names) {
		return true
	}
	depends, err := packetfilter.ByAddress(d.Host, p, ours)
	return err != nil || depends
}

// blocked adds a finding for what stops a packet on this host. It skips a missing listener, which is another
// finding, and drops in Fairlead's own table, which are policy.
func (d *Doctor) blocked(c attach.Cached, q trace.Question, answer *trace.Answer) bool {
	h := decidedAt(answer)
	if h == nil || h.Kind == "socket" {
		return false
	}
	isElsewhere := answer.Verdict == trace.Stops && d.left(answer)
	isPolicy := h.Verdict != nil && h.Verdict.Chain.Own()
	if isElsewhere || isPolicy {
		return false
	}

	d.Advise(q, answer)
	from := ""
	if q.From != nil {
		from = c.ContainerID + " "
	}
	if answer.Advice.IsZero() {
		answer.Look = fmt.Sprintf("fairlead trace %sto %v", from, q.Dst)
	}
	stopped := affects(c, answer.Packet+": "+h.Text)
	switch {
	case h.Place == "host" && h.Verdict != nil:
		d.drops(*h.Verdict, d.hostLink(c), affects(c, h.Hook+", "+answer.Packet))
	case h.Place == "host":
		d.addWith(HostPathBlocked, h.Kind, "", stopped, answer.Advice)
	default:
		d.addWith(ContainerPathBlocked, "container", "", stopped, answer.Advice)
	}
	return true
}

// decidedAt returns the hop that stops a packet for certain, or that stops it before long; nil if none does.
func decidedAt(answer *trace.Answer) *trace.Hop {
	i := len(answer.Hops) - 1
	switch {
	case answer.Verdict == trace.Unknown && answer.Fix != "":
		i = slices.IndexFunc(answer.Hops, func(h trace.Hop) bool { return h.State == trace.Unknown })
	case answer.Verdict != trace.Stops:
		i = -1
	}
	if i < 0 {
		return nil
	}
	return &answer.Hops[i]
}

// left reports whether the packet leaves by the host's uplink: nothing on this host can correct what follows.
func (d *Doctor) left(answer *trace.Answer) bool {
	uplink, err := rtnl.Egress(d.Host)
	return err == nil && slices.ContainsFunc(answer.Hops, func(h trace.Hop) bool {
		return h.Netns == "" && h.Out == uplink.Name
	})
}

// Traced returns an attachment as package trace knows containers.
func Traced(c attach.Cached) trace.Container {
	return trace.Container{Name: cmp.Or(attached.Name(c), attached.ShortID(c.ContainerID)), Netns: c.Netns}
}
