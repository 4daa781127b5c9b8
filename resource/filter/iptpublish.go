package filter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/kernel/xtables"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// PublishIPTables is Publish by iptables, in the chains of the reference. Its String has that of Publish in it.
type PublishIPTables struct {
	Publish
	MarkBit      int    // of the packet mark, 0 to 31, that has a packet masqueraded
	SetMarkChain string // a chain of somebody else that marks, instead of ours
}

func (p PublishIPTables) String() string {
	s := "iptables " + p.Publish.String()
	if len(p.Ports) > 0 && (p.SNAT || p.MasqAll) {
		if p.SetMarkChain != "" {
			return s + " mark by " + p.SetMarkChain
		}
		return s + " mark " + p.mark()
	}
	return s
}

// The chains of the reference. The last two it no longer makes, and still removes.
const (
	HostportDNAT    = "CNI-HOSTPORT-DNAT"
	hostportSetMark = "CNI-HOSTPORT-SETMARK"
	hostportMasq    = "CNI-HOSTPORT-MASQ"
	hostportSNAT    = "CNI-HOSTPORT-SNAT"
)

func DNATChain(o spec.Owner) string { return "CNI-DN-" + resource.ReferenceHash(o, 21) }

func (p PublishIPTables) mark() string {
	return fmt.Sprintf("%#x/%#x", uint32(1)<<p.MarkBit, uint32(1)<<p.MarkBit)
}

func (p PublishIPTables) masquerades() bool { return p.SNAT || p.MasqAll }

func (p PublishIPTables) Addrs() (all []netip.Prefix) {
	for _, to := range []netip.Prefix{p.To4, p.To6} {
		if to.IsValid() {
			all = append(all, to)
		}
	}
	return all
}

// shared are the rules that all attachments have in common, in the words of iptables-save; first ones go before
// what others have in the chain.
func (p PublishIPTables) shared() (rules []xtables.Rule, first []bool) {
	add := func(before bool, chain string, words ...string) {
		rules, first = append(rules, xtables.NewRule(chain, words...)), append(first, before)
	}
	if p.masquerades() && p.SetMarkChain == "" {
		add(false, hostportSetMark, "-m", "comment", "--comment", "CNI portfwd masquerade mark", "-j", "MARK", "--set-xmark",
			p.mark())
		add(false, hostportMasq, "-m", "mark", "--mark", p.mark(), "-j", "MASQUERADE")
		add(true, "POSTROUTING", "-m", "comment", "--comment", "CNI portfwd requiring masquerade", "-j", hostportMasq)
	}
	for _, hook := range []string{"PREROUTING", "OUTPUT"} {
		add(false, hook, "-m", "addrtype", "--dst-type", "LOCAL", "-j", HostportDNAT)
	}
	return rules, first
}

// entries lead to the container's chain. The reference puts ports of both families in, and 15 in a rule.
func (p PublishIPTables) entries(v6 bool) (rules []xtables.Rule, err error) {
	_, conditions := p.Family(v6)
	more, err := iptConditions(conditions, v6)
	if err != nil {
		return nil, err
	}
	ports := map[string][]string{}
	for _, m := range p.Ports {
		s := strconv.Itoa(int(m.HostPort))
		if m.Last() > m.HostPort {
			s += ":" + strconv.Itoa(int(m.Last()))
		}
		if !slices.Contains(ports[m.Protocol], s) {
			ports[m.Protocol] = append(ports[m.Protocol], s)
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
			words := []string{"-p", proto, "-m", "comment", "--comment", referenceComment("dnat ", p.Owner), "-m", "multiport",
				"--dports", strings.Join(list[:n], ",")}
			rules = append(rules, xtables.NewRule(HostportDNAT,
				slices.Concat(words, more, []string{"-j", DNATChain(p.Owner)})...))
			list = list[n:]
		}
	}
	return rules, nil
}

// own are the rules of the container's chain.
func (p PublishIPTables) own(v6 bool) (rules []xtables.Rule, err error) {
	to, _ := p.Family(v6)
	setMark := hostportSetMark
	if p.SetMarkChain != "" {
		setMark = p.SetMarkChain
	}
	for _, m := range p.Ports {
		if _, ok := kernel.ParseProto(m.Protocol); !ok || m.HostPort == 0 || m.ContainerPort == 0 {
			return nil, spec.Errorf(spec.CodeConfig, "port mapping %v: want tcp, udp or sctp, and two ports from 1 to 65535", m)
		}
		host, ok := m.Host(v6)
		if !ok {
			continue
		}
		for _, m := range m.pieces() { // a range of --to-destination is a choice, and no shift
			rule := func(src []string, target ...string) {
				words := slices.Clone(src)
				if !host.IsUnspecified() {
					words = append(words, "-d", netip.PrefixFrom(host, host.BitLen()).String())
				}
				port := strconv.Itoa(int(m.HostPort))
				if m.Last() > m.HostPort {
					port += ":" + strconv.Itoa(int(m.Last()))
				}
				words = append(words, "-p", m.Protocol, "-m", m.Protocol, "--dport", port)
				rules = append(rules, xtables.NewRule(DNATChain(p.Owner), append(words, target...)...))
			}
			switch {
			case p.MasqAll:
				rule(nil, "-j", setMark)
			case p.SNAT:
				rule([]string{"-s", to.Masked().String()}, "-j", setMark)
				if !v6 {
					rule([]string{"-s", "127.0.0.1/32"}, "-j", setMark)
				}
			}
			dst := netip.AddrPortFrom(to.Addr(), m.ContainerPort).String()
			if m.Len() > 1 {
				dst = to.Addr().String()
			}
			for _, src := range p.letIn(m, to, v6) {
				rule(src, "-j", "DNAT", "--to-destination", dst)
			}
		}
	}
	return rules, nil
}

// letIn are the matches of who reaches a port: whom allowFrom names, this host and the container itself. To
// others the port is not translated, and leads to whatever listens on it here.
func (p PublishIPTables) letIn(m PortMapping, to netip.Prefix, v6 bool) (matches [][]string) {
	if len(m.AllowFrom) == 0 {
		return [][]string{nil}
	}
	matches = [][]string{{"-m", "addrtype", "--src-type", "LOCAL"},
		{"-s", netip.PrefixFrom(to.Addr(), to.Addr().BitLen()).String()}}
	for _, from := range networks(OfFamily(m.AllowFrom, v6)) {
		matches = append(matches, []string{"-s", from.String()})
	}
	return matches
}

// iptConditions are the words of conditions, which iptables itself will understand or refuse.
func iptConditions(list []string, v6 bool) (words []string, err error) {
	key := ConditionsKey(v6)
	for _, c := range list {
		words = append(words, strings.Fields(c)...)
	}
	if len(words) > 0 && words[0][0] != '-' && words[0][0] != '!' {
		return nil, spec.Errorf(spec.CodeConfig, "%s: %q: the backend is iptables; want its words, such as -s 192.0.2.0/24",
			key, strings.Join(list, " "))
	}
	for i, w := range words {
		if w == "-j" || w == "-g" || strings.HasPrefix(w, "--jump") || strings.HasPrefix(w, "--goto") ||
			strings.ContainsAny(w, "\n\"") || len(w) > 255 {
			return nil, spec.Errorf(spec.CodeConfig, "%s: %q: want matches alone", key, w)
		}
		if after, ok := strings.CutPrefix(w, "!"); ok && after != "" { // "!-s", as the reference's documentation writes it
			words = slices.Concat(words[:i], []string{"!", after}, words[i+1:])
		}
	}
	return words, nil
}

func ConditionsKey(v6 bool) string {
	if v6 {
		return "conditionsV6"
	}
	return "conditionsV4"
}

// Ensure implements plan.Resource.
func (p PublishIPTables) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if len(p.Ports) == 0 {
		return false, nil
	}
	changed, err = ensureNAT(ctx, w, IPTPublishedRecord, DNATChain(p.Owner), p.Owner, p.Addrs(), p)
	if changed {
		FlushFlows(w, p.flows())
	}
	if err == nil {
		return changed, p.ensured(ctx, w, p.published())
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
func (p PublishIPTables) flows() (flows []conntrack.UDPFlow) {
	for _, m := range AllPieces(p.Ports) {
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

func (p PublishIPTables) draft(ctx context.Context, w *kernel.World, x *xtables.Table, d *IPTDraft) error {
	own, err := p.own(x.V6)
	if err != nil {
		return err
	}
	entries, err := p.entries(x.V6)
	if err != nil {
		return err
	}
	if _, ok := d.Saved[p.SetMarkChain]; !ok && p.SetMarkChain != "" && p.masquerades() {
		return spec.Errorf(spec.CodeConfig, "externalSetMarkChain: %q: %v has no such chain", p.SetMarkChain, x)
	}
	if err := p.replaceDead(w, d, x.V6); err != nil {
		return err
	}
	d.Chain(HostportDNAT)
	if p.masquerades() && p.SetMarkChain == "" {
		d.Chain(hostportSetMark)
		d.Chain(hostportMasq)
	}
	rules, first := p.shared()
	for i, r := range rules {
		d.Has(r, first[i])
	}
	keep, err := survivors(w, IPTPublishedRecord, p.Owner)
	if err != nil {
		return err
	}
	chain := DNATChain(p.Owner)
	theirs, theirEntries := survivingRules(d.Saved, chain, keep)
	want := slices.Concat(theirs, own)
	wantEntries := slices.Clone(theirEntries)
	for _, e := range entries {
		if !slices.ContainsFunc(wantEntries, e.Same) {
			wantEntries = append(wantEntries, e)
		}
	}
	have := slices.DeleteFunc(slices.Clone(d.Saved[HostportDNAT]), func(r xtables.Rule) bool { return r.Jump != chain })
	same := slices.EqualFunc(d.Saved[chain], want, xtables.Rule.Same) &&
		slices.EqualFunc(have, wantEntries, xtables.Rule.Same)
	if !same && len(d.Saved[chain]) == len(want) && len(have) == len(wantEntries) { // perhaps only put in other words
		missing, err := x.Missing(ctx, slices.Concat(want, wantEntries)...)
		if err != nil {
			return err
		}
		same = len(missing) == 0
	}
	if !same {
		for _, r := range have {
			d.Lines = append(d.Lines, r.Delete())
		}
		d.Lines = append(d.Lines, ":"+chain+" -")
		for _, r := range slices.Concat(want, wantEntries) {
			d.Lines = append(d.Lines, r.Append())
		}
	}
	return nil
}

// declaredFirst puts chains that are declared, which empties them, before the commands.
func declaredFirst(lines []string) []string {
	slices.SortStableFunc(lines, func(a, b string) int { return declares(b) - declares(a) })
	return lines
}

func declares(line string) int {
	if line[0] == ':' {
		return 1
	}
	return 0
}

// survivingRules are the rules of a container's chain that lead to the addresses keep, with the marks of the same
// ports, and the entries that lead there.
func survivingRules(saved map[string][]xtables.Rule, chain string,
	keep []netip.Addr) (rules, entries []xtables.Rule) {
	var ports []xtables.Rule
	for _, r := range saved[chain] {
		if r.Jump == "DNAT" && slices.Contains(keep, r.To.Addr()) {
			ports = append(ports, r)
		}
	}
	for _, r := range saved[chain] {
		stays := slices.ContainsFunc(ports, func(p xtables.Rule) bool {
			return p.Proto == r.Proto && p.Dst == r.Dst && slices.Equal(p.Ports, r.Ports)
		})
		if stays && (r.Jump != "DNAT" || slices.Contains(keep, r.To.Addr())) && !slices.ContainsFunc(rules, r.Same) {
			rules = append(rules, r)
		}
	}
	for _, r := range saved[HostportDNAT] {
		if r.Jump == chain && slices.ContainsFunc(ports,
			func(p xtables.Rule) bool { return p.Proto == r.Proto && meet(p.Ports, r.Ports) }) {
			entries = append(entries, r)
		}
	}
	return rules, entries
}

// meet reports whether two lists of ranges have a port in common.
func meet(a, b [][2]uint16) bool {
	return slices.ContainsFunc(a, func(p [2]uint16) bool {
		return slices.ContainsFunc(b, func(q [2]uint16) bool { return p[0] <= q[1] && q[0] <= p[1] })
	})
}

// Verify implements plan.Resource.
func (p PublishIPTables) Verify(ctx context.Context, w *kernel.World) error {
	var d resource.Drift
	for _, v6 := range []bool{false, true} {
		if to, _ := p.Family(v6); !to.IsValid() || len(p.Ports) == 0 {
			continue
		}
		x, err := IPTWith(w, v6, "nat", DNATChain(p.Owner))
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
		shared, _ := p.shared()
		missing, err := x.Missing(ctx, slices.Concat(shared, entries, own)...)
		if err != nil {
			return err
		}
		d = append(d, RuleDrifts(x, missing)...)
		rules, err := x.List(ctx, DNATChain(p.Owner))
		if err != nil {
			return err
		}
		keep, err := survivors(w, IPTPublishedRecord, p.Owner)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.Jump == "DNAT" && !slices.Contains(keep, r.To.Addr()) && !slices.ContainsFunc(own, func(o xtables.Rule) bool {
				return o.Jump == "DNAT" && o.To == r.To && o.Proto == r.Proto && slices.Equal(o.Ports, r.Ports)
			}) {
				d.Add(fmt.Errorf("%v chain %s leads %s %v to %v, which nobody asked for", x, r.Chain, r.Proto, r.Ports, r.To))
			}
		}
	}
	if len(p.Ports) > 0 {
		d.Add(p.guarded(ctx, w))
		for _, path := range p.paths(w, p.published()) {
			d.Add(path.err)
		}
		d.Add(p.strayed(w, p.published()))
	}
	return d.Err()
}

// published is what the paths to the container are asked for with.
func (p PublishIPTables) published() *published {
	pub := &published{}
	if p.masquerades() {
		pub.back, pub.local = true, p.To4.IsValid()
	}
	return pub
}

// PublishIPTablesKind is the Kind of PublishIPTables.
func PublishIPTablesKind() plan.Kind {
	return resource.KindByRemover("published ports in iptables", iptOwners(IPTPublishedRecord),
		func(o spec.Owner) plan.Remover {
			return PublishIPTables{Publish: Publish{Owner: o}}
		})
}
