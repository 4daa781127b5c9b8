package doctor

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// Tracer returns what follows packets between the host and all containers.
func (d *Doctor) Tracer() *trace.Tracer {
	t := d.tracer()
	for _, c := range d.All {
		if c.Netns == "" || c.Network == attached.LoopbackNetwork || d.Gone(c) {
			continue
		}
		same := func(o trace.Container) bool { return attached.SamePath(o.Netns, c.Netns) }
		if !slices.ContainsFunc(t.Containers, same) {
			t.Containers = append(t.Containers, Traced(c))
		}
	}
	return t
}

// tracer returns what follows packets on the host.
func (d *Doctor) tracer(of ...trace.Container) *trace.Tracer {
	return &trace.Tracer{Host: d.Host, Holder: d.Holder, Containers: of, Wanted: wanted{d.Snapshot}}
}

// bothWays follows a packet from a container to an address that does not answer, and one back where the address is of
// the host or of another container. It returns what becomes of them, and the advice about the first that this host
// loses. A packet that is only refused because no process listens is not lost: closed says so.
func (d *Doctor) bothWays(c attach.Cached, to netip.AddrPort) (details []string, how trace.Advice, closed string) {
	d.Host.Forget() // the probe has told the kernel about neighbours
	t := d.Tracer()
	for _, q := range d.ways(c, to) {
		answer, err := t.Trace(q)
		if err != nil {
			details = append(details, err.Error())
			continue
		}
		d.Advise(q, answer)
		word := map[trace.State]string{trace.Passes: "arrives", trace.Stops: "does not arrive",
			trace.Unknown: "cannot tell"}[answer.Verdict]

		details = append(details, fmt.Sprintf("trace of %s: %s: %s", answer.Packet, word, answer.Why))
		if answer.Verdict != trace.Stops || d.left(answer) || answer.Advice.IsZero() {
			continue
		}
		last := answer.Hops[len(answer.Hops)-1]
		if last.Kind == "socket" && answer.Fix == "" {
			closed = last.Text
		}
		if how.IsZero() {
			how = answer.Advice
		}
	}
	return details, how, closed
}

// ways returns the packet from a container to an address, and that back from who has the address.
func (d *Doctor) ways(c attach.Cached, at netip.AddrPort) (all []trace.Question) {
	from, to := Traced(c), at.Addr()
	there := trace.Question{From: &from, Dst: to, DstPort: at.Port(), Proto: trace.ICMP(to)}
	if at.Port() != 0 {
		there.Proto = kernel.TCP
	}
	all = append(all, there)
	back := trace.Question{Dst: ownAddress(c, to), Proto: trace.ICMP(to)}
	if !back.Dst.IsValid() {
		return all
	}
	if r, err := rtnl.RouteTo(d.Host, to); err == nil && r.Type == rtnl.Local {
		return append(all, back)
	}
	for _, o := range d.All {
		if attached.HasAddress(o, to) && !d.Gone(o) {
			other := Traced(o)
			back.From = &other
			return append(all, back)
		}
	}
	return all
}
