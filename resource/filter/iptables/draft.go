package iptables

import (
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel/xtables"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Draft collects the changes of one table.
type Draft struct {
	Saved map[string][]xtables.Rule
	Lines []string
	Made  map[string]bool
}

// Chain creates a chain if it does not exist.
func (d *Draft) Chain(name string) {
	if _, ok := d.Saved[name]; !ok && !d.Made[name] {
		d.Lines = append(d.Lines, "-N "+name)
		d.Made[name] = true
	}
}

// Has adds a rule if it is missing, at the end or the beginning of its chain.
func (d *Draft) Has(r xtables.Rule, first bool) {
	if slices.ContainsFunc(d.Saved[r.Chain], r.Same) {
		return
	}
	if first {
		d.Lines = append(d.Lines, r.Insert())
	} else {
		d.Lines = append(d.Lines, r.Append())
	}
}

// Drop removes a chain and the rules in other chains that jump to it.
func (d *Draft) Drop(chain string, from ...string) {
	for _, c := range from {
		for _, r := range d.Saved[c] {
			if r.Jump == chain {
				d.Lines = append(d.Lines, r.Delete())
			}
		}
	}
	d.Lines = append(d.Lines, "-F "+chain, "-X "+chain)
}

// RuleDrifts returns a difference for each missing rule.
func RuleDrifts(x *xtables.Table, missing []xtables.Rule) (d resource.Drift) {
	for _, r := range missing {
		d.Add(spec.Missing(fmt.Sprintf("rule %v %v", x, r)))
	}
	return d
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
