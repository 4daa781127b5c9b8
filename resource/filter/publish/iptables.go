package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/spec"
)

// PortsIPTables is Ports for iptables, in the reference's chains. Its String contains that of Ports.
type PortsIPTables struct {
	Ports
	MarkBit      int    // of the packet mark, 0 to 31, that has a packet masqueraded
	SetMarkChain string // a chain of another program that marks, instead of ours
}

func (p PortsIPTables) String() string {
	s := "iptables " + p.Ports.String()
	if len(p.Mappings) > 0 && (p.SNAT || p.MasqAll) {
		if p.SetMarkChain != "" {
			return s + " mark by " + p.SetMarkChain
		}
		return s + " mark " + p.mark()
	}
	return s
}

// The chains of the reference's portmap. It no longer makes the last two, but still removes them.
const (
	ChainDNAT       = "CNI-HOSTPORT-DNAT"
	hostportSetMark = "CNI-HOSTPORT-SETMARK"
	hostportMasq    = "CNI-HOSTPORT-MASQ"
	hostportSNAT    = "CNI-HOSTPORT-SNAT"
)

// ContainerChain returns the reference's name for the chain of a container on a network.
func ContainerChain(o spec.Owner) string { return "CNI-DN-" + resource.ReferenceHash(o, 21) }

func (p PortsIPTables) mark() string {
	return fmt.Sprintf("%#x/%#x", uint32(1)<<p.MarkBit, uint32(1)<<p.MarkBit)
}

// Addrs returns the container's addresses that the ports lead to.
func (p PortsIPTables) Addrs() (all []netip.Prefix) {
	for _, to := range []netip.Prefix{p.To4, p.To6} {
		if to.IsValid() {
			all = append(all, to)
		}
	}
	return all
}

// marks reports whether packets are masqueraded by a mark of ours.
func (p PortsIPTables) marks() bool { return (p.SNAT || p.MasqAll) && p.SetMarkChain == "" }

// shared are the rules that all attachments have in common; first ones go before what others have in the chain.
func (p PortsIPTables) shared() (rules, first []xtables.Rule) {
	if p.marks() {
		rules = []xtables.Rule{
			xtables.Rulef(hostportSetMark, "-m comment --comment %s -j MARK --set-xmark %s",
				"CNI portfwd masquerade mark", p.mark()),
			xtables.Rulef(hostportMasq, "-m mark --mark %s -j MASQUERADE", p.mark()),
		}
		first = []xtables.Rule{xtables.Rulef("POSTROUTING", "-m comment --comment %s -j %s",
			"CNI portfwd requiring masquerade", hostportMasq)}
	}
	for _, hook := range []string{"PREROUTING", "OUTPUT"} {
		rules = append(rules, xtables.Rulef(hook, "-m addrtype --dst-type LOCAL -j "+ChainDNAT))
	}
	return rules, first
}

// entries lead to the container's chain. The reference puts ports of both families in, and 15 in a rule.
func (p PortsIPTables) entries(v6 bool) (rules []xtables.Rule, err error) {
	_, conditions := p.Family(v6)
	more, err := iptConditions(conditions, v6)
	if err != nil {
		return nil, err
	}
	ports := map[string][]string{}
	for _, m := range p.Mappings {
		if !slices.Contains(ports[m.Protocol], m.dports()) {
			ports[m.Protocol] = append(ports[m.Protocol], m.dports())
		}
	}
	for _, proto := range []string{"sctp", "tcp", "udp"} {
		for list := ports[proto]; len(list) > 0; {
			n, room := 0, 15
			for n < len(list) && room > 0 { // a range takes the room of two
				if room--; strings.Contains(list[n], ":") {
					room--
				}
				if room >= 0 {
					n++
				}
			}
			words := []string{"-p", proto, "-m", "comment", "--comment", iptables.ReferenceComment("dnat ", p.Owner),
				"-m", "multiport",
				"--dports", strings.Join(list[:n], ",")}
			rules = append(rules, xtables.NewRule(ChainDNAT,
				slices.Concat(words, more, []string{"-j", ContainerChain(p.Owner)})...))
			list = list[n:]
		}
	}
	return rules, nil
}

// own are the rules of the container's chain.
func (p PortsIPTables) own(v6 bool) (rules []xtables.Rule, err error) {
	to, _ := p.Family(v6)
	setMark := cmp.Or(p.SetMarkChain, hostportSetMark)
	for _, m := range p.Mappings {
		if _, err := m.proto(); err != nil {
			return nil, err
		}
		host, ok := m.Host(v6)
		if !ok {
			continue
		}
		for _, m := range m.pieces() { // a range of --to-destination is a choice, and no shift
			ports := fmt.Sprintf("-p %s -m %[1]s --dport %s", m.Protocol, m.dports())
			if !host.IsUnspecified() {
				ports = fmt.Sprintf("-d %v %s", filter.Single(host), ports)
			}
			rule := func(src, target, options string) {
				format := src + " " + ports + " -j %s " + options
				rules = append(rules, xtables.Rulef(ContainerChain(p.Owner), format, target))
			}
			switch {
			case p.MasqAll:
				rule("", setMark, "")
			case p.SNAT:
				rule("-s "+to.Masked().String(), setMark, "")
				if !v6 {
					rule("-s 127.0.0.1/32", setMark, "")
				}
			}
			dst := netip.AddrPortFrom(to.Addr(), m.ContainerPort).String()
			if m.Len() > 1 {
				dst = to.Addr().String()
			}
			for _, src := range p.letIn(m, to, v6) {
				rule(src, "DNAT", "--to-destination "+dst)
			}
		}
	}
	return rules, nil
}

// letIn are the matches of who reaches a port: whom allowFrom names, this host and the container itself. To
// others the port is not translated, and leads to whatever listens on it here.
func (p PortsIPTables) letIn(m Mapping, to netip.Prefix, v6 bool) (matches []string) {
	if len(m.AllowFrom) == 0 {
		return []string{""}
	}
	matches = []string{"-m addrtype --src-type LOCAL", "-s " + filter.Single(to.Addr()).String()}
	for _, from := range filter.Masked(filter.OfFamily(m.AllowFrom, v6)) {
		matches = append(matches, "-s "+from.String())
	}
	return matches
}

// Ensure implements plan.Resource.
func (p PortsIPTables) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if len(p.Mappings) == 0 {
		return false, nil
	}
	changed, err = iptables.EnsureNAT(ctx, w, IPTablesRecord, ContainerChain(p.Owner), p.Owner, p.Addrs(), p)
	if changed {
		FlushFlows(w, p.flows())
	}
	if err == nil {
		return changed, p.paths(w).ensured(ctx)
	}
	var failed *xtables.Error
	if errors.As(err, &failed) && failed.Misuse() {
		v6 := strings.HasPrefix(failed.Program, "ip6")
		if _, conditions := p.Family(v6); len(conditions) > 0 {
			err = spec.Errorf(spec.CodeConfig, "%s: %q: %w", ConditionsKey(v6), strings.Join(conditions, " "), err)
		}
	}
	return changed, err
}

// flows are those that may have led elsewhere before.
func (p PortsIPTables) flows() (flows []conntrack.UDPFlow) {
	for _, m := range AllPieces(p.Mappings) {
		for _, prefix := range p.Addrs() {
			to := prefix.Addr()
			if host, ok := m.Host(to.Is6()); ok && m.Protocol == "udp" {
				lead := netip.AddrPortFrom(to, m.ContainerPort)
				if m.Len() > 1 {
					lead = netip.AddrPortFrom(to, 0) // each to the same number
				}
				flows = append(flows, conntrack.UDPFlow{Host: host, Port: m.HostPort, Last: m.Last(), To: lead})
			}
		}
	}
	return flows
}

// Draft implements iptables.NATRules.
func (p PortsIPTables) Draft(ctx context.Context, w *kernel.World, d *iptables.Draft) error {
	x := d.Table
	own, err := p.own(x.V6)
	if err != nil {
		return err
	}
	entries, err := p.entries(x.V6)
	if err != nil {
		return err
	}
	if _, ok := d.Saved[p.SetMarkChain]; !ok && p.SetMarkChain != "" && (p.SNAT || p.MasqAll) {
		return spec.Errorf(spec.CodeConfig, "externalSetMarkChain: %q: %v has no such chain", p.SetMarkChain, x)
	}
	if err := p.replaceDead(w, d, x.V6); err != nil {
		return err
	}
	d.Chain(ChainDNAT)
	if p.marks() {
		d.Chain(hostportSetMark)
		d.Chain(hostportMasq)
	}
	shared, first := p.shared()
	d.Append(shared...)
	d.Insert(first...)
	keep, err := iptables.Survivors(w, IPTablesRecord, p.Owner)
	if err != nil {
		return err
	}
	chain := ContainerChain(p.Owner)
	kept, entering := survivingRules(d.Saved, chain, keep)
	for _, e := range entries {
		if !slices.ContainsFunc(entering, e.Same) {
			entering = append(entering, e)
		}
	}
	want := slices.Concat(kept, own, entering)
	haveEntries := iptables.LeadingTo(chain, d.Saved[ChainDNAT])
	have := slices.Concat(d.Saved[chain], haveEntries)
	same := slices.EqualFunc(have, want, xtables.Rule.Same)
	if !same && len(have) == len(want) { // perhaps only put in other words
		missing, err := x.Missing(ctx, want...)
		if err != nil {
			return err
		}
		same = len(missing) == 0
	}
	if !same {
		d.Delete(haveEntries...)
		d.Fill(chain, want)
	}
	return nil
}

// meet reports whether two lists of ranges have a port in common.
func meet(a, b [][2]uint16) bool {
	return slices.ContainsFunc(a, func(p [2]uint16) bool {
		return slices.ContainsFunc(b, func(q [2]uint16) bool { return p[0] <= q[1] && q[0] <= p[1] })
	})
}

// Verify implements plan.Resource.
func (p PortsIPTables) Verify(ctx context.Context, w *kernel.World) error {
	var d resource.Drift
	for _, v6 := range []bool{false, true} {
		if to, _ := p.Family(v6); !to.IsValid() || len(p.Mappings) == 0 {
			continue
		}
		x, err := iptables.With(w, v6, "nat", ContainerChain(p.Owner))
		if err != nil {
			return err
		}
		own, err := p.own(v6)
		if err != nil {
			return err
		}
		entries, err := p.entries(v6)
		if err != nil {
			return err
		}
		shared, first := p.shared()
		missing, err := iptables.Drift(ctx, x, slices.Concat(shared, first, entries, own)...)
		if err != nil {
			return err
		}
		d = append(d, missing...)
		rules, err := x.List(ctx, ContainerChain(p.Owner))
		if err != nil {
			return err
		}
		keep, err := iptables.Survivors(w, IPTablesRecord, p.Owner)
		if err != nil {
			return err
		}
		for _, r := range rules {
			asked := func(o xtables.Rule) bool {
				return o.Jump == "DNAT" && o.To == r.To && o.Proto == r.Proto && slices.Equal(o.Ports, r.Ports)
			}
			if r.Jump == "DNAT" && !slices.Contains(keep, r.To.Addr()) && !slices.ContainsFunc(own, asked) {
				d.Add(spec.DiffersBy("rule", "%v chain %s leads %s %v to %v, which no port mapping asks for", x,
					r.Chain, r.Proto, r.Ports, r.To))
			}
		}
	}
	if len(p.Mappings) > 0 {
		paths := p.paths(w)
		if paths.local {
			d.Add(guarded(ctx, w))
		}
		d.Add(paths.drift())
	}
	return d.Err()
}

// KindIPTables returns the Kind of PortsIPTables.
func KindIPTables() plan.Kind {
	return resource.KindByRemover("published ports in iptables", iptables.OwnersByRecord(IPTablesRecord),
		func(o spec.Owner) plan.Remover {
			return PortsIPTables{Ports: Ports{Owner: o}}
		})
}

// IPTablesRecord is the name of the record of addresses that the rules lead to.
const IPTablesRecord = "iptpublish"
