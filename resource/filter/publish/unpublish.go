package publish

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
)

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
	for _, r := range saved[ChainDNAT] {
		if r.Jump == chain && slices.ContainsFunc(ports,
			func(p xtables.Rule) bool { return p.Proto == r.Proto && meet(p.Ports, r.Ports) }) {
			entries = append(entries, r)
		}
	}
	return rules, entries
}

// Remove implements plan.Remover. It needs only the owner. It also removes the rules that the reference's plugin
// made.
func (p PortsIPTables) Remove(ctx context.Context, w *kernel.World) error {
	return iptables.RemoveNAT(ctx, w, IPTablesRecord, p.Owner, p, ContainerChain(p.Owner), p.snatChain())
}

// snatChain is the container's chain of a former version of the reference's plugin.
func (p PortsIPTables) snatChain() string { return "CNI-SN-" + resource.ReferenceHash(p.Owner, 21) }

// RemoveRules implements iptables.NATRules.
func (p PortsIPTables) RemoveRules(ctx context.Context, w *kernel.World) error {
	keep, err := iptables.Survivors(w, IPTablesRecord, p.Owner)
	errs := []error{err}
	for _, v6 := range []bool{false, true} {
		errs = append(errs, RemoveContainerChain(ctx, w, v6, ContainerChain(p.Owner), keep),
			iptables.RemoveChain(ctx, w, v6, p.snatChain(), hostportSNAT, nil))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return w.Store.Delete(IPTablesRecord, p.Owner)
}

// goneFlows are those that rules led to a container.
func goneFlows(rules []xtables.Rule, v6 bool) (flows []conntrack.UDPFlow) {
	for _, r := range rules {
		if r.Jump != "DNAT" || r.Proto != "udp" {
			continue
		}
		for _, ports := range r.Ports {
			flows = append(flows, conntrack.UDPFlow{Host: anyAddr(v6), Port: ports[0], Last: ports[1], To: r.To,
				Gone: true})
		}
	}
	return flows
}

// RemoveContainerChain removes a container's chain and the rules that jump to it, except those for the addresses
// keep. Conntrack forgets flows to the others.
func RemoveContainerChain(ctx context.Context, w *kernel.World, v6 bool, chain string, keep []netip.Addr) error {
	var gone []xtables.Rule
	all, err := iptables.Having(w, v6, "nat", chain)
	errs := []error{err}
	for _, x := range all {
		rules, err := x.List(ctx, chain, ChainDNAT)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		stays := false
		var entries []xtables.Rule
		for _, r := range rules {
			switch {
			case r.Chain == ChainDNAT && r.Jump == chain:
				entries = append(entries, r)
			case r.Jump != "DNAT":
			case slices.Contains(keep, r.To.Addr()):
				stays = true
			default:
				gone = append(gone, r)
			}
		}
		if !stays {
			errs = append(errs, x.Remove(ctx, entries, []string{chain}))
			continue
		}
		_, err = iptables.Edit(ctx, x, func(d *iptables.Draft) error {
			kept, keptEntries := survivingRules(d.Saved, chain, keep)
			for _, r := range iptables.LeadingTo(chain, d.Saved[ChainDNAT]) {
				if !slices.ContainsFunc(keptEntries, r.Same) {
					d.Delete(r)
				}
			}
			d.Fill(chain, kept)
			return nil
		})
		errs = append(errs, err)
	}
	FlushFlows(w, goneFlows(gone, v6))
	return errors.Join(errs...)
}
