package iptables

import (
	"context"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Draft collects the changes of a table, which are made together.
type Draft struct {
	Table *xtables.Table
	Saved map[string][]xtables.Rule // its rules, by chain
	Lines []string
}

// Read returns a draft without changes.
func Read(ctx context.Context, t *xtables.Table) (*Draft, error) {
	saved, err := t.Save(ctx)
	return &Draft{Table: t, Saved: saved}, err
}

// Edit has do draft changes of a table, and makes them.
func Edit(ctx context.Context, t *xtables.Table, do func(*Draft) error) (changed bool, err error) {
	d, err := Read(ctx, t)
	if err == nil {
		err = do(d)
	}
	if err != nil {
		return false, err
	}
	return len(d.Lines) > 0, d.Apply(ctx)
}

// Apply makes the changes. Declarations of chains, which empty them, come before the commands.
func (d *Draft) Apply(ctx context.Context) error {
	declares := func(line string) int {
		if line[0] == ':' {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(d.Lines, func(a, b string) int { return declares(b) - declares(a) })
	return d.Table.Apply(ctx, d.Lines...)
}

// Chain creates a chain if it does not exist.
func (d *Draft) Chain(name string) {
	if _, ok := d.Saved[name]; !ok {
		d.Lines = append(d.Lines, "-N "+name)
		d.Saved[name] = nil
	}
}

// Insert adds rules that are missing, each at the beginning of its chain.
func (d *Draft) Insert(rules ...xtables.Rule) {
	for _, r := range Lacking(d.Saved, rules) {
		d.Lines = append(d.Lines, r.Insert())
	}
}

// Append adds rules that are missing, each at the end of its chain.
func (d *Draft) Append(rules ...xtables.Rule) {
	for _, r := range Lacking(d.Saved, rules) {
		d.Lines = append(d.Lines, r.Append())
	}
}

// Fill makes a chain that holds these rules and no others.
func (d *Draft) Fill(chain string, rules []xtables.Rule) {
	d.Lines = append(d.Lines, ":"+chain+" -")
	for _, r := range rules {
		d.Lines = append(d.Lines, r.Append())
	}
}

// Delete deletes rules.
func (d *Draft) Delete(rules ...xtables.Rule) {
	for _, r := range rules {
		d.Lines = append(d.Lines, r.Delete())
	}
}

// Drop removes a chain and the rules in another chain that jump to it.
func (d *Draft) Drop(chain, from string) {
	d.Delete(LeadingTo(chain, d.Saved[from])...)
	d.Lines = append(d.Lines, "-F "+chain, "-X "+chain)
}

// LeadingTo returns the rules that jump to a chain.
func LeadingTo(chain string, rules []xtables.Rule) []xtables.Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r xtables.Rule) bool { return r.Jump != chain })
}

// Drift returns a difference for each rule that a table lacks.
func Drift(ctx context.Context, x *xtables.Table, rules ...xtables.Rule) (d resource.Drift, err error) {
	missing, err := x.Missing(ctx, rules...)
	for _, r := range missing {
		d.Add(spec.Missing(fmt.Sprintf("rule %v %v", x, r)))
	}
	return d, err
}

// Lacking returns the wanted rules that the chains do not have.
func Lacking(have map[string][]xtables.Rule, want []xtables.Rule) (missing []xtables.Rule) {
	for _, r := range want {
		if !slices.ContainsFunc(have[r.Chain], r.Same) {
			missing = append(missing, r)
		}
	}
	return missing
}
