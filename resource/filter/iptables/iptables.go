package iptables

import (
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// The backends that iptables is asked for have the chains, rules and comments of the reference plugins, so
// that either removes what the other made. Nothing in them tells the interfaces of one container on one network
// apart but the addresses; whose these are is remembered in /run, as the rules die with the boot too.

// Program requires the iptables program and the kernel support that the iptables backends need. Backend is the
// configuration key that selected iptables; errors name it.
type Program struct {
	Backend string
	Table   string
}

func (i Program) String() string { return "iptables -t " + i.Table }

// Verify implements plan.Requirement.
func (i Program) Verify(_ context.Context, w *kernel.World) error {
	x, err := xtables.TableOf(w.Host, false, i.Table)
	if err == nil {
		err = x.Installed()
	}
	if err != nil {
		return spec.Errorf(spec.CodeConfig, "%s: \"iptables\": %w; or say \"nftables\", which needs no program",
			i.Backend,
			err)
	}
	return nil
}

// The chains of accepts and of policies, with the names of the reference's plugins. Code that writes one of them has
// to keep the order of both.
const (
	ChainForward = "CNI-FORWARD"
	ChainStage1  = "CNI-ISOLATION-STAGE-1"
)

// ChangeHaving has do draft changes of every table filter, of both families and variants, that has a chain. Own means
// that the rules of the chain belong to single owners. If no table has the chain, no program is executed.
func ChangeHaving(ctx context.Context, w *kernel.World, chain string, own bool, do func(*Draft) error) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		tables, err := Having(w, v6, "filter", chain)
		errs = append(errs, err)
		for _, t := range tables {
			change := func(ctx context.Context) error {
				_, err := Edit(ctx, t, do)
				return err
			}
			if own {
				errs = append(errs, WithOwnRules(ctx, w, change))
			} else {
				errs = append(errs, WithLock(ctx, change))
			}
		}
	}
	return errors.Join(errs...)
}

// With returns the table of the variant that has the chain, or else of the variant that has the table.
func With(w *kernel.World, v6 bool, table, chain string) (*xtables.Table, error) {
	all, err := Having(w, v6, table, chain)
	if err != nil {
		return nil, err
	}
	if len(all) > 0 {
		return all[0], nil
	}
	return xtables.TableOf(w.Host, v6, table)
}

// Having returns the tables of both variants that have one of the chains.
func Having(w *kernel.World, v6 bool, table string, chains ...string) (all []*xtables.Table, err error) {
	for _, v := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		x := xtables.NewTable(w.Host, v, v6, table)
		there, err := x.Chains(chains...)
		if err != nil {
			return nil, err
		}
		if slices.Contains(there, true) {
			all = append(all, x)
		}
	}
	return all, nil
}
