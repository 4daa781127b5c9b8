package masquerade

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/spec"
)

// SourcesIPTables is Sources for iptables, in a chain with the reference's name for the container.
type SourcesIPTables struct{ Sources }

func (m SourcesIPTables) String() string { return "iptables " + m.Sources.String() }

// ContainerChain returns the reference's name for the chain of a container on a network.
func ContainerChain(o spec.Owner) string { return "CNI-" + resource.ReferenceHash(o, 24) }

// own are the rules of the container's chain, for addresses of one family. Others are those of other containers.
func (m SourcesIPTables) own(from, others []netip.Prefix, v6 bool) (rules []xtables.Rule) {
	add := func(match, target string) {
		rules = append(rules, xtables.Rulef(ContainerChain(m.Owner), match+" -m comment --comment %s -j "+target,
			iptables.ReferenceComment("", m.Owner)))
	}
	to := "MASQUERADE"
	if a, ok := m.snatTo(v6); ok {
		to = "SNAT --to-source " + a.String()
	}
	each := func(list []netip.Prefix, target string) {
		for _, p := range filter.Masked(filter.OfFamily(list, v6)) {
			match := ""
			if p.Bits() > 0 { // as iptables-save, which leaves out what matches all
				match = "-d " + p.String()
			}
			add(match, target)
		}
	}
	multicast := "-d " + filter.Multicast(v6).String()
	if len(filter.OfFamily(m.Force, v6)) > 0 {
		add(multicast, "ACCEPT")
		each(m.Force, to)
	}
	each(from, "ACCEPT")
	each(m.Except, "ACCEPT")
	kept := filter.Masked(slices.Concat(from, m.Except))
	for _, p := range subnets(others, v6) {
		if !slices.Contains(kept, p) {
			rules = append(rules, keeps(ContainerChain(m.Owner), p, m.Owner))
		}
	}
	add("! "+multicast, to)
	return rules
}

// jumps lead the addresses to the container's chain.
func (m SourcesIPTables) jumps(v6 bool) (rules []xtables.Rule) {
	for _, p := range filter.OfFamily(m.From, v6) {
		rules = append(rules, xtables.Rulef("POSTROUTING", "-s %v -m comment --comment %s -j %s",
			filter.Single(p.Addr()), iptables.ReferenceComment("", m.Owner), ContainerChain(m.Owner)))
	}
	return rules
}

// neighbours are the addresses of the container's other interfaces on the network, which share the chain, and the
// records of other containers of the network.
func (m SourcesIPTables) neighbours(w *kernel.World) (same []netip.Prefix, others []iptables.Record, err error) {
	records, err := iptables.Records(w, IPTablesRecord, m.Owner.Network)
	for _, r := range records {
		switch {
		case r.ContainerID != m.Owner.ContainerID:
			others = append(others, r)
		case r.IfName != m.Owner.IfName:
			same = append(same, r.Addrs...)
		}
	}
	return same, others, err
}

// Ensure implements plan.Resource.
func (m SourcesIPTables) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if len(m.From) == 0 {
		return false, nil
	}
	return iptables.EnsureNAT(ctx, w, IPTablesRecord, ContainerChain(m.Owner), m.Owner, m.From, m)
}

// Open implements iptables.NATRules. Masquerading needs nothing before its rules.
func (m SourcesIPTables) Open(context.Context, *kernel.World) (bool, error) { return false, nil }

// Draft implements iptables.NATRules.
func (m SourcesIPTables) Draft(_ context.Context, w *kernel.World, d *iptables.Draft) error {
	v6, chain := d.Table.V6, ContainerChain(m.Owner)
	mine := m.jumps(v6)
	same, others, err := m.neighbours(w)
	if err != nil {
		return err
	}
	keep, err := iptables.Survivors(w, IPTablesRecord, m.Owner)
	if err != nil {
		return err
	}
	want := m.own(slices.Concat(m.From, same), addrsOf(others), v6)
	if !slices.EqualFunc(d.Saved[chain], want, xtables.Rule.Same) {
		d.Fill(chain, want)
	}
	for _, r := range iptables.LeadingTo(chain, d.Saved["POSTROUTING"]) {
		wanted := slices.ContainsFunc(mine, func(j xtables.Rule) bool { return j.Src == r.Src })
		if !wanted && !slices.Contains(keep, r.Src.Addr()) {
			d.Delete(r) // of an address that the container no longer has
		}
	}
	d.Append(mine...)
	m.draftOthers(others, v6, d)
	return nil
}

// Verify implements plan.Resource.
func (m SourcesIPTables) Verify(ctx context.Context, w *kernel.World) error {
	var d resource.Drift
	same, others, err := m.neighbours(w)
	if err != nil {
		return err
	}
	for _, v6 := range []bool{false, true} {
		jumps := m.jumps(v6)
		if len(jumps) == 0 {
			continue
		}
		x, err := iptables.With(w, v6, "nat", ContainerChain(m.Owner))
		if err != nil {
			return err
		}
		own := m.own(slices.Concat(m.From, same), addrsOf(others), v6)
		missing, err := iptables.Drift(ctx, x, slices.Concat(jumps, own)...)
		if err != nil {
			return err
		}
		d = append(d, missing...)
	}
	return d.Err()
}

// Remove implements plan.Remover. It needs only the owner. It also removes the rules that the reference's plugin
// made.
func (m SourcesIPTables) Remove(ctx context.Context, w *kernel.World) error {
	return iptables.RemoveNAT(ctx, w, IPTablesRecord, m.Owner, m, ContainerChain(m.Owner))
}

// RemoveRules implements iptables.NATRules.
func (m SourcesIPTables) RemoveRules(ctx context.Context, w *kernel.World) error {
	keep, err := iptables.Survivors(w, IPTablesRecord, m.Owner)
	errs := []error{err}
	for _, v6 := range []bool{false, true} {
		errs = append(errs, RemoveContainerChain(ctx, w, v6, ContainerChain(m.Owner), keep), m.leaveOthers(ctx, w, v6))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return w.Store.Delete(IPTablesRecord, m.Owner)
}

// RemoveContainerChain removes a chain that masquerades addresses; see iptables.RemoveChain.
func RemoveContainerChain(ctx context.Context, w *kernel.World, v6 bool, chain string, keep []netip.Addr) error {
	return iptables.RemoveChain(ctx, w, v6, chain, "POSTROUTING", keep)
}

// KindIPTables returns the Kind of SourcesIPTables.
func KindIPTables() plan.Kind {
	return resource.KindByRemover("masquerade in iptables", iptables.OwnersByRecord(IPTablesRecord),
		func(o spec.Owner) plan.Remover {
			return SourcesIPTables{Sources{Owner: o}}
		})
}

// IPTablesRecord is the name of the record of addresses that the rules are for.
const IPTablesRecord = "iptmasquerade"
