// Package xtables handles iptables, in both variants. It reads from the kernel directly where possible. It writes
// with iptables-restore, the only program that the packages below kernel execute.
package xtables

import (
	"context"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
)

// A Variant is one of the two iptables programs. Their tables have the same names, but neither program sees the
// other's tables.
type Variant byte

// NFT keeps its tables in nf_tables, Legacy in ip_tables.
const (
	NFT Variant = 1 + iota
	Legacy
)

// String returns "nft" or "legacy".
func (v Variant) String() string {
	if v == Legacy {
		return "legacy"
	}
	return "nft"
}

// A Table is one table of one family and variant. It asks the kernel directly whether there is something to read or
// change. It executes a program only then.
type Table struct {
	ns      *kernel.NS
	Variant Variant
	V6      bool
	Table   string // filter, nat, …
}

// NewTable returns a table of the given variant. The table need not exist.
func NewTable(ns *kernel.NS, v Variant, v6 bool, table string) *Table {
	return &Table{ns, v, v6, table}
}

// TableOf returns a table of the variant that has the table on this host. If none or both have it, the variant of the
// program "iptables" counts.
func TableOf(ns *kernel.NS, v6 bool, table string) (*Table, error) {
	owners, err := owners(ns, v6, table)
	if err != nil {
		return nil, err
	}
	if len(owners) == 1 {
		return owners[0], nil
	}
	v, err := plainVariant(v6)
	if err != nil {
		return nil, err
	}
	return NewTable(ns, v, v6, table), nil
}

// owners are the variants that have a table.
func owners(ns *kernel.NS, v6 bool, table string) (owners []*Table, err error) {
	for _, v := range []Variant{NFT, Legacy} {
		t := NewTable(ns, v, v6, table)
		there, err := t.exists()
		if err != nil {
			return nil, err
		}
		if there {
			owners = append(owners, t)
		}
	}
	return owners, nil
}

// String returns the command that lists the table: "iptables-nft -t nat".
func (t *Table) String() string { return t.command("") + " -t " + t.Table }

// command is the name of the variant's program: "ip6tables-legacy-save" for "save".
func (t *Table) command(what string) string {
	name := "iptables-" + t.Variant.String()
	if t.V6 {
		name = "ip6tables-" + t.Variant.String()
	}
	if what != "" {
		name += "-" + what
	}
	return name
}

// nft is the table in nf_tables.
func (t *Table) nft() *nft.Table {
	return &nft.Table{Family: nft.Family(t.V6), Name: t.Table}
}

// exists reports whether the variant has the table. A kernel without the variant has none.
func (t *Table) exists() (bool, error) {
	if t.Variant == Legacy {
		names, err := LegacyTables(t.ns, t.V6)
		return slices.Contains(names, t.Table), err
	}
	n, err := nft.Open(t.ns)
	if err != nil {
		return false, ignoreNoNFT(err)
	}
	_, there, err := n.Handle(t.nft())
	return there, ignoreNoNFT(err)
}

func ignoreNoNFT(err error) error {
	if nft.Unsupported(err) {
		return nil
	}
	return err
}

// Chains reports which of these chains exist, in the order of names.
func (t *Table) Chains(names ...string) (there []bool, err error) {
	if t.Variant == Legacy {
		there = make([]bool, len(names))
		chains, exists, err := legacyChains(t.ns, t.V6, t.Table)
		for i, name := range names {
			there[i] = slices.Contains(chains, name) || exists && builtinChain(name)
		}
		return there, err
	}
	n, err := nft.Open(t.ns)
	if err != nil {
		return make([]bool, len(names)), ignoreNoNFT(err)
	}
	there, err = n.HasChains(t.nft(), names)
	return there, ignoreNoNFT(err)
}

// HasChain reports whether the table has a chain whose name begins with prefix. For nf_tables, it returns true if the
// table exists, and does not search the chains.
func (t *Table) HasChain(prefix string) (bool, error) {
	if t.Variant == NFT {
		return t.exists()
	}
	chains, _, err := legacyChains(t.ns, t.V6, t.Table)
	return slices.ContainsFunc(chains, func(c string) bool { return strings.HasPrefix(c, prefix) }), err
}

// List reads the rules of chains, in order: from nf_tables by netlink, without words, and otherwise by iptables-save.
func (t *Table) List(ctx context.Context, chains ...string) (rules []Rule, err error) {
	if t.Variant == Legacy {
		if there, err := t.Chains(chains...); err != nil || !slices.Contains(there, true) {
			return nil, err
		}
		all, err := t.Save(ctx)
		for _, c := range chains {
			rules = append(rules, all[c]...)
		}
		return rules, err
	}
	n, err := nft.Open(t.ns)
	if err != nil {
		return nil, ignoreNoNFT(err)
	}
	for _, c := range chains {
		more, err := ChainRules(n, t.nft(), c, t.V6)
		if ignoreNoNFT(err) != nil {
			return nil, err
		}
		rules = append(rules, more...)
	}
	return rules, nil
}

// Remove deletes rules that List has read, and empties and deletes chains, all or nothing. It uses netlink for
// nf_tables, and iptables-restore otherwise. The chains must exist, and no other rules may jump to them.
func (t *Table) Remove(ctx context.Context, rules []Rule, chains []string) error {
	if len(rules)+len(chains) == 0 {
		return nil
	}
	if t.Variant == Legacy {
		var lines []string
		for _, c := range chains {
			lines = append(lines, ":"+quote(c)+" -") // which empties it
		}
		for _, r := range rules {
			if !slices.Contains(chains, r.Chain) {
				lines = append(lines, r.Delete())
			}
		}
		for _, c := range chains {
			lines = append(lines, "-X "+quote(c))
		}
		return t.Apply(ctx, lines...)
	}
	n, err := nft.Open(t.ns)
	if err != nil {
		return err
	}
	var b nft.Batch
	RemoveRules(&b, t.nft(), rules)
	for _, c := range chains {
		b.RemoveChain(t.nft(), c)
	}
	if err := fence(ctx); err != nil {
		return err
	}
	return n.Commit(&b)
}

// RemoveRules adds to b the deletion of rules by their handles.
func RemoveRules(b *nft.Batch, t *nft.Table, rules []Rule) {
	for _, rule := range rules {
		b.DeleteRule(t, rule.Chain, rule.handle)
	}
}
