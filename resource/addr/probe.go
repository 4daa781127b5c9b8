package addr

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/link"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Probe asks, before a link of the container gets its IPv4 addresses, whether a host on the segment has one of them
// or is about to take it (RFC 5227, 2.1.1). For IPv6, the kernel asks, and Announce waits for the answer.
type Probe struct {
	Link  string
	Addrs []netip.Prefix
	Port  string      // the host's end, waited for until it forwards; empty: none
	On    link.Master // the link below, whose addresses are not answered for by Link; without a Kind: none
	ByOn  bool        // ask by On, which has Link's MAC and gets what is meant for it
}

// The time-outs of a Probe: three questions in about a second, as long as the kernel's own detection for IPv6. Those
// of the RFC are four times as long, for radio links that sleep and for machines that boot together after a power
// failure.
const (
	probeFirst = 200 * time.Millisecond // at most, before the first question (PROBE_WAIT)
	probeMin   = 250 * time.Millisecond // between two (PROBE_MIN)
	probeMax   = 500 * time.Millisecond // (PROBE_MAX)
	probeLast  = 500 * time.Millisecond // after the last one (ANNOUNCE_WAIT)
	probeCount = 3                      // (PROBE_NUM)
)

func (p Probe) String() string {
	on := "on cont/" + p.Link
	over := resource.Flag("over "+p.On.Words(), p.On.Kind != "")
	if p.ByOn {
		on, over = "on "+p.On.Words(), "for cont/"+p.Link
	}
	probe := resource.Addrs("probe", resource.AddrsOf(p.Addrs))
	return resource.Line(probe, on, over, resource.Flag("through host/"+p.Port, p.Port != ""))
}

// Verify implements plan.Resource. It does not ask again.
func (p Probe) Verify(context.Context, *kernel.World) error { return nil }

// Ensure implements plan.Resource. It makes nothing. It fails with a Taken if an address is in use.
func (p Probe) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, l, err := resource.Container.Link(w, p.Link)
	if err != nil {
		return false, err
	}
	if p.On.Kind != "" {
		on, master, err := p.On.Find(w)
		if err == nil {
			err = p.below(on, master)
		}
		if err != nil {
			return false, err
		}
		if p.ByOn {
			ns, l = on, master
		}
	}
	ask, err := p.unknown(w)
	if err != nil || len(ask) == 0 {
		return false, err
	}
	carries := l.Operational
	if !p.ByOn {
		if carries, err = connected(ctx, w, l, p.Port); err != nil {
			return false, err
		}
	}
	if !carries {
		return false, spec.Errorf(spec.CodeTryAgain,
			"conflictDetection: \"probe\": %s carries nothing, so no neighbour can be asked for %v; see to its cable",
			l.Name, ask[0])
	}
	return false, p.ask(ctx, ns, l, slices.DeleteFunc(ask, netip.Addr.Is6))
}

// unknown are the addresses that the link is still without, or that the kernel is still asking for.
func (p Probe) unknown(w *kernel.World) (list []netip.Addr, err error) {
	ns, index, err := resource.Container.Index(w, p.Link)
	if err != nil {
		return nil, err
	}
	have, err := rtnl.Addrs(ns, index)
	for _, a := range p.Addrs {
		if !slices.ContainsFunc(have, func(h rtnl.Addr) bool { return h.Prefix.Addr() == a.Addr() && !h.Tentative }) {
			list = append(list, a.Addr())
		}
	}
	return list, err
}

// below refuses an address of the master. The master is on the segment, but does not receive questions from a link
// above it.
func (p Probe) below(ns *kernel.NS, master *rtnl.Link) error {
	have, err := rtnl.Addrs(ns, master.Index)
	for _, h := range have {
		for _, a := range p.Addrs {
			if h.Prefix.Addr() == a.Addr() {
				return taken(a.Addr(), fmt.Sprintf("%s itself, %s, has it", master.Name, p.On.Where.Place()))
			}
		}
	}
	return err
}

// ask asks three times, and listens in between and after.
func (p Probe) ask(ctx context.Context, ns *kernel.NS, l *rtnl.Link, addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	n, err := packet.ListenNeighbours(ns, l, false)
	if err != nil {
		return spec.Errorf(spec.CodeConfig, "conflictDetection: \"probe\": no neighbour can be asked for %v: %w",
			addrs[0], err)
	}
	defer n.Close()
	wait := rand.N(probeFirst)
	for i := range probeCount + 1 {
		if err := awaitConflict(ctx, n, addrs, time.Now().Add(wait)); err != nil {
			return err
		}
		if i == probeCount {
			break
		}
		for _, a := range addrs {
			if err := n.Ask(a); err != nil {
				return err
			}
		}
		if wait = probeMin + rand.N(probeMax-probeMin); i == probeCount-1 {
			wait = probeLast
		}
	}
	return nil
}

// awaitConflict is the conflict that is heard of until then, or nil.
func awaitConflict(ctx context.Context, n *packet.NeighbourConn, addrs []netip.Addr, until time.Time) error {
	for {
		c, ok, err := n.Next(ctx, until)
		if err != nil || !ok {
			return err
		}
		if slices.Contains(addrs, c.Addr) {
			return taken(c.Addr, claims(c.MAC, c.Probe))
		}
	}
}

func claims(mac net.HardwareAddr, probe bool) string {
	if probe {
		return mac.String() + " on the link is about to have it"
	}
	return mac.String() + " on the link has it"
}

// taken returns the error that another host has an address. The configuration is correct and the conflict may pass:
// the allocator may give another address, or the other host may release this one. So the code is 11 (clause P8).
func taken(a netip.Addr, holder string) error {
	return spec.Errorf(spec.CodeTryAgain, "%w",
		Taken{a, holder}).WithHint("Something on that segment uses the address: find it by its MAC, or use another. " +
		"`fairlead ipam reserve NET ADDRESS` keeps host-local from giving it out.")
}

// A Taken is the error that another host on the link has an address. The allocator of the address has to know of it.
type Taken struct {
	Addr   netip.Addr
	Holder string
}

func (t Taken) Error() string { return "address " + t.Addr.String() + ": " + t.Holder }

// askHolder asks which host has an IPv6 address that failed duplicate address detection. If two hosts tried to take it
// at the same time, neither has it.
func askHolder(ctx context.Context, ns *kernel.NS, index int, a netip.Addr) error {
	const patience = 500 * time.Millisecond
	unknown := taken(a, "another machine on the link has it, or wants it too")
	l, err := rtnl.LinkByIndex(ns, index)
	if err != nil {
		return errors.Join(unknown, err)
	}
	n, err := packet.ListenNeighbours(ns, l, true)
	if err != nil {
		return unknown
	}
	defer n.Close()
	if err = n.Ask(a); err == nil {
		err = awaitConflict(ctx, n, []netip.Addr{a}, time.Now().Add(patience))
	}
	if e := (*spec.Error)(nil); errors.As(err, &e) {
		return err
	}
	return unknown
}
