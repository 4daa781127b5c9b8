package xtables

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
)

// Save returns the rules of each chain of the table, in order, as iptables-save prints them. A table that does not
// exist has none, and then no program is executed. Iptables-nft-save succeeds with a part of the rules when the kernel
// does not answer one of its questions. So the numbers of rules are compared with the kernel's.
func (t *Table) Save(ctx context.Context) (chains map[string][]Rule, err error) {
	if there, err := t.exists(); err != nil || !there {
		return map[string][]Rule{}, err
	}
	lacking := ""
	for range 4 { // another program may change the table meanwhile
		out, err := t.run(ctx, "", "save", "-t", t.Table)
		if err != nil {
			return nil, err
		}
		chains = parseSaved(out)
		if t.Variant == Legacy {
			return chains, nil
		}
		if lacking, err = t.lacking(chains); err != nil || lacking == "" {
			return chains, err
		}
	}
	return nil, fmt.Errorf("%s: prints %s, again and again: try again when the host has more memory", t.command("save"),
		lacking)
}

// parseSaved reads what iptables-save has printed of a table.
func parseSaved(out string) map[string][]Rule {
	chains := map[string][]Rule{}
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, ":"); ok {
			name, _, _ = strings.Cut(name, " ")
			chains[name] = nil
		} else if rest, ok := strings.CutPrefix(line, "-A "); ok {
			if words := split(rest); len(words) > 0 {
				chains[words[0]] = append(chains[words[0]], parseRule(words[0], words[1:]))
			}
		}
	}
	return chains
}

// lacking names a chain of which other rules were printed than the kernel has, and is empty if there is none. A chain
// that was not printed is one that cannot be made, or not one of iptables.
func (t *Table) lacking(chains map[string][]Rule) (what string, err error) {
	n, err := nft.Open(t.ns)
	if err != nil {
		return "", err
	}
	uses, err := n.Uses(t.nft()) // which counts rules that lead to a chain, too
	if err != nil {
		return "", err
	}
	printed := map[string]int{}
	for name, rules := range chains {
		printed[name] += len(rules)
		for _, r := range rules {
			printed[r.Jump]++
		}
	}
	for name, rules := range chains {
		if uses[name] == printed[name] {
			continue
		}
		there := 0 // for a transaction that has only begun is counted among the uses
		if err := n.EachRule(t.nft(), name, func([]byte) { there++ }); err != nil {
			return "", err
		}
		if there != len(rules) {
			return fmt.Sprintf("%d of %d rules of chain %s", len(rules), there, name), nil
		}
	}
	return "", nil
}
