package filter

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/kernel/xtables"
	"github.com/fairlead-cni/fairlead/resource"
)

// Remove implements plan.Remover. It needs only the owner, and removes as well what the reference made for it.
func (p PublishIPTables) Remove(ctx context.Context, w *kernel.World) error {
	return removeNAT(ctx, w, IPTPublishedRecord, p.Owner, p, DNATChain(p.Owner),
		"CNI-SN-"+resource.ReferenceHash(p.Owner, 21))
}

func (p PublishIPTables) remove(ctx context.Context, w *kernel.World) error {
	keep, err := survivors(w, IPTPublishedRecord, p.Owner)
	errs := []error{err}
	var flows []conntrack.UDPFlow
	for _, v6 := range []bool{false, true} {
		cut, err := RemovePublished(ctx, w, v6, DNATChain(p.Owner), keep)
		flows = append(flows, cut...)
		errs = append(errs, err, removeChain(ctx, w, v6, "CNI-SN-"+resource.ReferenceHash(p.Owner, 21), hostportSNAT, nil))
	}
	FlushFlows(w, flows)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return w.Store.Delete(IPTPublishedRecord, p.Owner)
}

// RemovePublished removes a container's chain and what leads there, but for what leads to the addresses keep.
func RemovePublished(ctx context.Context, w *kernel.World, v6 bool, chain string,
	keep []netip.Addr) (flows []conntrack.UDPFlow, err error) {
	all, err := IPTHaving(w, v6, "nat", chain)
	errs := []error{err}
	for _, x := range all {
		rules, err := x.List(ctx, chain, HostportDNAT)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		stays := false
		var entries []xtables.Rule
		for _, r := range rules {
			switch {
			case r.Chain == HostportDNAT && r.Jump == chain:
				entries = append(entries, r)
			case r.Jump != "DNAT":
			case slices.Contains(keep, r.To.Addr()):
				stays = true
			case r.Proto == "udp":
				for _, port := range r.Ports {
					for n := int(port[0]); n <= int(port[1]); n++ {
						to := r.To
						if to.Port() == 0 {
							to = netip.AddrPortFrom(to.Addr(), uint16(n))
						}
						flows = append(flows, conntrack.UDPFlow{Host: anyAddr(v6), Port: uint16(n), To: to, Gone: true})
					}
				}
			}
		}
		if !stays {
			errs = append(errs, x.Remove(ctx, entries, []string{chain}))
			continue
		}
		saved, err := x.Save(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		theirs, theirEntries := survivingRules(saved, chain, keep)
		lines := []string{":" + chain + " -"}
		for _, r := range saved[HostportDNAT] {
			if r.Jump == chain && !slices.ContainsFunc(theirEntries, r.Same) {
				lines = append(lines, r.Delete())
			}
		}
		for _, r := range theirs {
			lines = append(lines, r.Append())
		}
		errs = append(errs, x.Apply(ctx, lines...))
	}
	return flows, errors.Join(errs...)
}

// removeChain removes the rules of another chain that lead to a chain, but for those from the addresses keep, and the
// chain with the last of them.
func removeChain(ctx context.Context, w *kernel.World, v6 bool, chain, from string, keep []netip.Addr) error {
	all, err := IPTHaving(w, v6, "nat", chain)
	errs := []error{err}
	for _, x := range all {
		rules, err := x.List(ctx, from)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		rules = slices.DeleteFunc(rules, func(r xtables.Rule) bool { return r.Jump != chain })
		gone := slices.DeleteFunc(slices.Clone(rules),
			func(r xtables.Rule) bool { return slices.Contains(keep, r.Src.Addr()) })
		chains := []string{chain}
		if len(gone) < len(rules) {
			chains = nil
		}
		errs = append(errs, x.Remove(ctx, gone, chains))
	}
	return errors.Join(errs...)
}
