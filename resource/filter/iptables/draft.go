package iptables

import (
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel/xtables"
	"github.com/fairlead-cni/fairlead/resource"
)

// A Draft is a change of one table while it is written.
type Draft struct {
	Saved map[string][]xtables.Rule
	Lines []string
	Made  map[string]bool
}

// Chain makes a chain if there is none.
func (d *Draft) Chain(name string) {
	if _, ok := d.Saved[name]; !ok && !d.Made[name] {
		d.Lines = append(d.Lines, "-N "+name)
		d.Made[name] = true
	}
}

// Has adds a rule where it is missing, at the end of its chain or as the first one.
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

// Drop removes a chain and the rules in others that lead there.
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

// RuleDrifts says of each rule that it is missing.
func RuleDrifts(x *xtables.Table, missing []xtables.Rule) (d resource.Drift) {
	for _, r := range missing {
		d.Add(fmt.Errorf("rule %v %v is missing", x, r))
	}
	return d
}

// Lacking are the wanted rules that the chains lack.
func Lacking(have map[string][]xtables.Rule, want []xtables.Rule) (missing []xtables.Rule) {
	for _, r := range want {
		if !slices.ContainsFunc(have[r.Chain], r.Same) {
			missing = append(missing, r)
		}
	}
	return missing
}
