package routing

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A RuleEntry is a policy routing rule of the container, the Subject of a Change.
type RuleEntry struct {
	V4, V6   bool // of which families; both: a Flush
	Priority int  // zero, to delete: any
	From, To netip.Prefix
	IIF, OIF string
	Mark     uint32
	Mask     uint32 // zero: any mark
	Table    int
	Action   addr.Action // without Table
}

func (r RuleEntry) kind() string { return "rule" }

func (r RuleEntry) String() string {
	family := ""
	switch {
	case r.From.IsValid() || r.To.IsValid() || r.V4 && r.V6:
	case r.V6:
		family = "-6"
	default:
		family = "-4"
	}
	return resource.Line(family, resource.Opt("priority", r.Priority), r.rule().Words())
}

func (r RuleEntry) rule() addr.Rule {
	return addr.Rule{V6: r.V6, Priority: r.Priority, From: r.From, To: r.To, IIF: r.IIF, OIF: r.OIF, Mark: r.Mark,
		Mask: r.Mask, Table: r.Table, Action: r.Action}
}

func (r RuleEntry) list(at site) (list []rtnl.Message, err error) {
	for _, f := range resource.Families() {
		if f == rtnl.IPv4 && r.V4 || f == rtnl.IPv6 && r.V6 {
			all, err := rtnl.RuleMessages(at.ns, f)
			if err != nil {
				return nil, err
			}
			list = append(list, all...)
		}
	}
	return list, nil
}

func (r RuleEntry) message(at site) rtnl.Message { return rtnl.NewRule(at.ns, r.rule().Kernel()) }

func (r RuleEntry) selected(_ site, m rtnl.Message, flush bool) bool {
	have, ok := m.Rule()
	if !ok {
		return false
	}
	if flush {
		return have.Protocol != rtnl.ByKernel && have.Priority != 0 && have.Priority < rtnl.MainPriority
	}
	return (r.Priority == 0 || have.Priority == r.Priority) && (!r.From.IsValid() || have.From == r.From) &&
		(!r.To.IsValid() || have.To == r.To) && (r.IIF == "" || have.IIF == r.IIF) &&
		(r.OIF == "" || have.OIF == r.OIF) &&
		(r.Mask == 0 || have.Mark == r.Mark && have.Mask == r.Mask) &&
		(r.Table == 0 || have.Table == r.Table) && (r.Action == "" || have.Action == r.Action.RuleAction())
}

// occupies returns false, because several rules may have one priority.
func (r RuleEntry) occupies(site, rtnl.Message) bool { return false }

func (r RuleEntry) is(_ site, m rtnl.Message) bool {
	have, ok := m.Rule()
	want := r.rule().Kernel()
	want.Protocol = have.Protocol
	return ok && have == want
}

func (r RuleEntry) verify(_ context.Context, _ *kernel.World, at site) error { return isThere(r, at) }

func (r RuleEntry) said(_ site, m rtnl.Message) string {
	have, _ := m.Rule()
	return "rule " + RuleEntry{V4: have.Family == rtnl.IPv4, V6: have.Family == rtnl.IPv6, Priority: have.Priority,
		From: have.From, To: have.To, IIF: have.IIF, OIF: have.OIF, Mark: have.Mark, Mask: have.Mask,
		Table: have.Table}.String()
}

func isThere(s Subject, at site) error {
	list, err := s.list(at)
	if err == nil && !slices.ContainsFunc(list, func(m rtnl.Message) bool { return s.is(at, m) }) {
		err = spec.Missing("")
	}
	return err
}

// A NeighbourEntry is an entry in the neighbour table of the container interface, the Subject of a Change.
type NeighbourEntry struct {
	Addr   netip.Addr // invalid: any, of a Flush
	V4, V6 bool       // which families a Flush is about
	MAC    string
}

func (n NeighbourEntry) kind() string { return "neighbour" }

func (n NeighbourEntry) String() string {
	if n.Addr.IsValid() {
		return resource.Line(n.Addr.String(), resource.Opt("lladdr", n.MAC))
	}
	return map[[2]bool]string{{true, false}: "-4", {false, true}: "-6"}[[2]bool{n.V4, n.V6}]
}

func (n NeighbourEntry) list(at site) (list []rtnl.Message, err error) {
	for _, f := range resource.Families() {
		if !hasFamily(f, n.Addr, n.V4, n.V6) {
			continue
		}
		all, err := rtnl.NeighbourMessages(at.ns, f, at.index)
		if err != nil {
			return nil, err
		}
		list = append(list, all...)
	}
	return list, nil
}

func (n NeighbourEntry) message(at site) rtnl.Message {
	mac, _ := net.ParseMAC(n.MAC)
	return rtnl.NewNeighbour(at.ns, rtnl.Neighbour{Addr: n.Addr, MAC: mac, Link: at.index, State: rtnl.Permanent})
}

// selected leaves out entries that the kernel makes for multicast groups, and learned entries that are no longer
// valid.
func (n NeighbourEntry) selected(_ site, m rtnl.Message, flush bool) bool {
	have := m.Neighbour()
	if flush {
		return have.State&rtnl.NoARP == 0 && have.State&^unix.NUD_FAILED != 0
	}
	return have.Addr == n.Addr && (n.MAC == "" || have.MAC.String() == resource.MACText(n.MAC)) &&
		have.State&unix.NUD_FAILED == 0
}

// occupies reports whether an entry was set by a program. A learned entry is simply replaced.
func (n NeighbourEntry) occupies(_ site, m rtnl.Message) bool {
	have := m.Neighbour()
	return have.Addr == n.Addr && have.State&rtnl.Permanent != 0
}

func (n NeighbourEntry) is(at site, m rtnl.Message) bool {
	return n.occupies(at, m) && m.Neighbour().MAC.String() == resource.MACText(n.MAC)
}

func (n NeighbourEntry) verify(_ context.Context, _ *kernel.World, at site) error {
	list, err := n.list(at)
	if err != nil {
		return err
	}
	for _, m := range list {
		if have := m.Neighbour(); n.occupies(at, m) {
			var d resource.Drift
			d.Want("lladdr", resource.MACText(n.MAC), have.MAC)
			return d.Err()
		}
	}
	return spec.Missing("")
}

func (n NeighbourEntry) said(_ site, m rtnl.Message) string {
	have := m.Neighbour()
	return "neighbour " + have.Addr.String() + " lladdr " + have.MAC.String()
}
