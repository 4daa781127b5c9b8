package publish

import (
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
)

// guardRules are the guard of the nft table, for a kernel without nf_tables.
func guardRules() (rules []xtables.Rule) {
	for _, side := range []string{"-d", "-s"} {
		rules = append(rules, xtables.Rulef("PREROUTING",
			side+" 127.0.0.0/8 ! -i lo -m comment --comment %s -j DROP", "fairlead: 127/8 from outside"))
	}
	return rules
}

// guard keeps neighbours out of 127/8, which route_localnet would let them into: by our nft table, which other
// attachments have it by too, else by iptables.
func guard(ctx context.Context, w *kernel.World) error {
	err := filter.Transact(ctx, w, filter.Inet(),
		func(f filter.Tx) error { return f.EnsureBase(filter.NewChainSet(f.Table)) })
	if !filter.Unavailable(err) {
		return err
	}
	x := xtables.NewTable(w.Host, xtables.Legacy, false, "raw")
	missing, err := x.Missing(ctx, guardRules()...)
	if err != nil {
		return err
	}
	var lines []string
	for _, r := range missing {
		lines = append(lines, r.Insert())
	}
	return x.Apply(ctx, lines...)
}

// guarded says what of the guard is missing.
func guarded(ctx context.Context, w *kernel.World) error {
	err := filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		i := slices.IndexFunc(f.Table.Chains, func(c *nft.Chain) bool { return c.Name == "guard" })
		found, _, err := f.Diff(&nft.Table{Family: f.Table.Family, Name: f.Table.Name, Chains: f.Table.Chains[i : i+1]})
		return errors.Join(append(found, err)...)
	})
	if !filter.Unavailable(err) {
		return err
	}
	x := xtables.NewTable(w.Host, xtables.Legacy, false, "raw")
	missing, err := iptables.Drift(ctx, x, guardRules()...)
	return errors.Join(err, missing.Err())
}
