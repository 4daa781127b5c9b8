package iptables

import (
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/xtables"
	"github.com/fairlead-cni/fairlead/spec"
)

// The backends that iptables is asked for have the chains, rules and comments of the reference plugins, so
// that either removes what the other made. Nothing in them tells the interfaces of one container on one network
// apart but the addresses; whose these are is remembered in /run, as the rules die with the boot too.

// Program is the program and what it speaks to, which the iptables backends need. Backend is the key of the
// configuration that asked for it.
type Program struct {
	Backend string
	Table   string
}

func (i Program) String() string { return "iptables -t " + i.Table }

// Ensure implements plan.Resource: the host has it or not.
func (i Program) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, i.Verify(ctx, w)
}

// Verify implements plan.Resource.
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

// The chains of accepts and of policies, which the reference has too. Who writes one minds the place of the other.
const (
	ChainForward = "CNI-FORWARD"
	ChainStage1  = "CNI-ISOLATION-STAGE-1"
)

// ChangeHaving changes the tables filter, of both families and variants, that have a chain: change says by which lines,
// of the rules there. Own says that these are owners' own rules. Where there is no such chain, the kernel says so and
// nothing is executed.
func ChangeHaving(ctx context.Context, w *kernel.World, chain string, own bool,
	change func(map[string][]xtables.Rule) ([]string, error)) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		tables, err := Having(w, v6, "filter", chain)
		errs = append(errs, err)
		for _, t := range tables {
			do := func() error {
				have, err := t.Save(ctx)
				if err != nil {
					return err
				}
				lines, err := change(have)
				if err != nil {
					return err
				}
				return t.Apply(ctx, lines...)
			}
			if own {
				errs = append(errs, WithOwnRules(ctx, w, do))
			} else {
				errs = append(errs, WithLock(ctx, do))
			}
		}
	}
	return errors.Join(errs...)
}

// With is the table by the variant that has the chain, else by the one that has the table.
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

// Having are the tables, by either variant, that have one of the chains.
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
