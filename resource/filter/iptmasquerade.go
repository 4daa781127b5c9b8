package filter

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/xtables"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// MasqueradeIPTables is Masquerade by iptables, in a chain of the reference's name for the container.
type MasqueradeIPTables struct{ Masquerade }

func (m MasqueradeIPTables) String() string { return "iptables " + m.Masquerade.String() }

func MasqueradeChain(o spec.Owner) string { return "CNI-" + resource.ReferenceHash(o, 24) }

// own are the rules of the container's chain, for addresses of one family.
func (m MasqueradeIPTables) own(from []netip.Prefix, v6 bool) (rules []xtables.Rule) {
	add := func(words ...string) {
		rules = append(rules, xtables.NewRule(MasqueradeChain(m.Owner), words...))
	}
	comment := []string{"-m", "comment", "--comment", referenceComment("", m.Owner)}
	to := []string{"-j", "MASQUERADE"}
	for _, a := range m.SNATTo {
		if a = a.Unmap(); a.Is6() == v6 {
			to = []string{"-j", "SNAT", "--to-source", a.String()}
		}
	}
	multicast := "224.0.0.0/4"
	if v6 {
		multicast = "ff00::/8"
	}
	each := func(list []netip.Prefix, target ...string) {
		for _, p := range networks(OfFamily(list, v6)) {
			words := comment
			if p.Bits() > 0 { // as iptables-save, which leaves out what matches all
				words = append([]string{"-d", p.String()}, comment...)
			}
			add(slices.Concat(words, target)...)
		}
	}
	if len(OfFamily(m.Force, v6)) > 0 {
		add(slices.Concat([]string{"-d", multicast}, comment, []string{"-j", "ACCEPT"})...)
		each(m.Force, to...)
	}
	each(from, "-j", "ACCEPT")
	each(m.Except, "-j", "ACCEPT")
	add(slices.Concat([]string{"!", "-d", multicast}, comment, to)...)
	return rules
}

// jumps lead the addresses to the container's chain.
func (m MasqueradeIPTables) jumps(v6 bool) (rules []xtables.Rule) {
	for _, p := range OfFamily(m.From, v6) {
		rules = append(rules, xtables.NewRule("POSTROUTING", "-s", netip.PrefixFrom(p.Addr(), p.Addr().BitLen()).String(),
			"-m", "comment", "--comment", referenceComment("", m.Owner), "-j", MasqueradeChain(m.Owner)))
	}
	return rules
}

// neighbours are the addresses of the container's other interfaces on the network, which share the chain.
func (m MasqueradeIPTables) neighbours(w *kernel.World) (all []netip.Prefix, err error) {
	records, err := iptRecords(w, IPTMasqueradeRecord, m.Owner.Network)
	for _, r := range records {
		if r.ContainerID == m.Owner.ContainerID && r.IfName != m.Owner.IfName {
			all = append(all, r.Addrs...)
		}
	}
	return all, err
}

// Ensure implements plan.Resource.
func (m MasqueradeIPTables) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if len(m.From) == 0 {
		return false, nil
	}
	return ensureNAT(ctx, w, IPTMasqueradeRecord, MasqueradeChain(m.Owner), m.Owner, m.From, m)
}

func (m MasqueradeIPTables) open(context.Context, *kernel.World) (bool, error) { return false, nil }

func (m MasqueradeIPTables) draft(_ context.Context, w *kernel.World, x *xtables.Table, d *IPTDraft) error {
	mine, chain := m.jumps(x.V6), MasqueradeChain(m.Owner)
	neighbours, err := m.neighbours(w)
	if err != nil {
		return err
	}
	keep, err := survivors(w, IPTMasqueradeRecord, m.Owner)
	if err != nil {
		return err
	}
	if want := m.own(slices.Concat(m.From, neighbours), x.V6); !slices.EqualFunc(d.Saved[chain], want,
		xtables.Rule.Same) {
		d.Lines = append(d.Lines, ":"+chain+" -")
		for _, r := range want {
			d.Lines = append(d.Lines, r.Append())
		}
	}
	for _, r := range d.Saved["POSTROUTING"] {
		wanted := slices.ContainsFunc(mine, func(j xtables.Rule) bool { return j.Src == r.Src })
		if r.Jump == chain && !wanted && !slices.Contains(keep, r.Src.Addr()) {
			d.Lines = append(d.Lines, r.Delete()) // of an address that the container no longer has
		}
	}
	for _, j := range mine {
		d.Has(j, false)
	}
	return nil
}

// Verify implements plan.Resource.
func (m MasqueradeIPTables) Verify(ctx context.Context, w *kernel.World) error {
	var d resource.Drift
	neighbours, err := m.neighbours(w)
	if err != nil {
		return err
	}
	for _, v6 := range []bool{false, true} {
		jumps := m.jumps(v6)
		if len(jumps) == 0 {
			continue
		}
		x, err := IPTWith(w, v6, "nat", MasqueradeChain(m.Owner))
		if err != nil {
			return err
		}
		own := m.own(slices.Concat(m.From, neighbours), v6)
		missing, err := x.Missing(ctx, slices.Concat(jumps, own)...)
		if err != nil {
			return err
		}
		d = append(d, RuleDrifts(x, missing)...)
	}
	return d.Err()
}

// Remove implements plan.Remover. It needs only the owner, and removes as well what the reference made for it.
func (m MasqueradeIPTables) Remove(ctx context.Context, w *kernel.World) error {
	return removeNAT(ctx, w, IPTMasqueradeRecord, m.Owner, m, MasqueradeChain(m.Owner))
}

func (m MasqueradeIPTables) remove(ctx context.Context, w *kernel.World) error {
	keep, err := survivors(w, IPTMasqueradeRecord, m.Owner)
	errs := []error{err}
	for _, v6 := range []bool{false, true} {
		errs = append(errs, RemoveMasquerade(ctx, w, v6, MasqueradeChain(m.Owner), keep))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return w.Store.Delete(IPTMasqueradeRecord, m.Owner)
}

// RemoveMasquerade removes a chain of addresses that masquerade, see removeChain.
func RemoveMasquerade(ctx context.Context, w *kernel.World, v6 bool, chain string, keep []netip.Addr) error {
	return removeChain(ctx, w, v6, chain, "POSTROUTING", keep)
}

// MasqueradeIPTablesKind is the Kind of MasqueradeIPTables.
func MasqueradeIPTablesKind() plan.Kind {
	return resource.KindByRemover("masquerade in iptables", iptOwners(IPTMasqueradeRecord),
		func(o spec.Owner) plan.Remover {
			return MasqueradeIPTables{Masquerade{Owner: o}}
		})
}
