package iptables

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// NATRules are the rules of an attachment in the tables nat of the families in which it has addresses.
type NATRules interface {
	Draft(context.Context, *kernel.World, *Draft) error
	Open(context.Context, *kernel.World) (changed bool, err error) // what comes before the rules
	RemoveRules(context.Context, *kernel.World) error
}

// EnsureNAT makes the rules for addresses of an attachment. Before that, it records the addresses. The chain belongs
// to the attachment alone.
func EnsureNAT(ctx context.Context, w *kernel.World, kind, chain string, o spec.Owner, addrs []netip.Prefix,
	rules NATRules) (changed bool, err error) {
	err = WithLock(ctx, func(ctx context.Context) error {
		var known Record
		had, err := w.Store.Get(kind, o, &known)
		if err != nil {
			return err
		}
		var drafts []*Draft
		for _, v6 := range []bool{false, true} {
			if len(filter.OfFamily(addrs, v6)) == 0 {
				continue
			}
			x, err := With(w, v6, "nat", chain)
			if err != nil {
				return err
			}
			d, err := Read(ctx, x)
			if err == nil {
				err = rules.Draft(ctx, w, d)
			}
			if err == nil && len(d.Lines) > 0 {
				drafts, err = append(drafts, d), x.Installed()
			}
			if err != nil {
				return err
			}
		}
		if changed, err = rules.Open(ctx, w); err != nil {
			return err
		}
		if !had || !slices.Equal(known.Addrs, addrs) {
			if err := remember(w, kind, o, addrs); err != nil {
				return err
			}
			changed = true
		}
		for _, d := range drafts {
			if err := d.Apply(ctx); err != nil {
				return errors.Join(err, rules.RemoveRules(ctx, w))
			}
			changed = true
		}
		return nil
	})
	return changed && err == nil, err
}

// RemoveNAT removes the rules of an attachment if there is a record of them or if one of the chains exists. Usually
// neither is the case.
func RemoveNAT(ctx context.Context, w *kernel.World, kind string, o spec.Owner, rules NATRules,
	chains ...string) error {
	there, err := w.Store.Get(kind, o, &Record{})
	for _, v6 := range []bool{false, true} {
		if !there && err == nil {
			var all []*xtables.Table
			all, err = Having(w, v6, "nat", chains...)
			there = len(all) > 0
		}
	}
	if err != nil || !there {
		return err
	}
	return WithLock(ctx, func(ctx context.Context) error { return rules.RemoveRules(ctx, w) })
}

// RemoveChain removes the rules in other chains that jump to a chain, except those for the addresses keep. It removes
// the chain with the last of these rules.
func RemoveChain(ctx context.Context, w *kernel.World, v6 bool, chain, from string, keep []netip.Addr) error {
	all, err := Having(w, v6, "nat", chain)
	errs := []error{err}
	for _, x := range all {
		rules, err := x.List(ctx, from)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		rules = LeadingTo(chain, rules)
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
