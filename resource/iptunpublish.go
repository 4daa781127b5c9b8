package resource

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
)

// Remove implements plan.Remover. It needs only the owner, and removes as well what the reference made for it.
func (p PublishIPTables) Remove(ctx context.Context, w *kernel.World) error {
	there, err := p.remains(w)
	if err != nil || !there {
		return err
	}
	return withIPTables(ctx, func() error { return p.remove(ctx, w) })
}

// remains reports whether there is anything to remove, which most of the time there is not.
func (p PublishIPTables) remains(w *kernel.World) (bool, error) {
	var r iptRecord
	if known, err := w.Memory.Recall(iptPublished, p.Owner, &r); known || err != nil {
		return true, err
	}
	for _, v6 := range []bool{false, true} {
		all, err := iptHaving(w, v6, "nat", dnatChain(p.Owner), "CNI-SN-"+referenceHash(p.Owner, 21))
		if len(all) > 0 || err != nil {
			return true, err
		}
	}
	return false, nil
}

func (p PublishIPTables) remove(ctx context.Context, w *kernel.World) error {
	keep, err := survivors(w, iptPublished, p.Owner)
	errs := []error{err}
	var flows []kernel.UDPFlow
	for _, v6 := range []bool{false, true} {
		cut, err := removePublished(ctx, w, v6, dnatChain(p.Owner), keep)
		flows = append(flows, cut...)
		errs = append(errs, err, removeChain(ctx, w, v6, "CNI-SN-"+referenceHash(p.Owner, 21), hostportSNAT))
	}
	flush(w, flows)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return w.Memory.Forget(iptPublished, p.Owner)
}

// removePublished removes a container's chain and what leads there, but for what leads to the addresses keep.
func removePublished(ctx context.Context, w *kernel.World, v6 bool, chain string, keep []netip.Addr) (flows []kernel.UDPFlow, err error) {
	all, err := iptHaving(w, v6, "nat", chain)
	errs := []error{err}
	for _, x := range all {
		rules, err := x.List(ctx, chain, hostportDNAT)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		stays := false
		var entries []kernel.IPTRule
		for _, r := range rules {
			switch {
			case r.Chain == hostportDNAT && r.Jump == chain:
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
						flows = append(flows, kernel.UDPFlow{Host: anyAddr(v6), Port: uint16(n), To: to, Gone: true})
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
		for _, r := range saved[hostportDNAT] {
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

// removeChain removes a chain and the rules of another one that lead there.
func removeChain(ctx context.Context, w *kernel.World, v6 bool, chain, from string) error {
	all, err := iptHaving(w, v6, "nat", chain)
	errs := []error{err}
	for _, x := range all {
		rules, err := x.List(ctx, from)
		if err == nil {
			rules = slices.DeleteFunc(rules, func(r kernel.IPTRule) bool { return r.Jump != chain })
			err = x.Remove(ctx, rules, []string{chain})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
