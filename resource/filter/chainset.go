package filter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// EnsureBase makes the static part of the table, and a chain set, if anything of them is missing. It then returns
// ERESTART, because data that was read before belongs to an older generation.
func (f Tx) EnsureBase(p *ChainSet) error {
	if !f.Table.Ends && f.CanEnd() {
		f.Table.Ends = true
		return unix.ERESTART
	}
	all := &nft.Table{Family: f.Table.Family, Name: f.Table.Name, Ends: f.Table.Ends, Sets: f.Table.Sets,
		Chains: slices.Concat(f.Table.Chains, p.Chains)}
	var more []*nft.Rule
	for _, l := range p.Jumps {
		more = append(more, l.Rule)
	}
	switch {
	case f.again:
	case f.known.has(p):
		return nil
	case f.known == nil:
		if ok, err := f.Intact(*f.gen, all, more...); err != nil || ok {
			return err
		}
	}
	fixed := false
	for _, t := range []*nft.Table{f.Table, &p.Table} {
		drift, fix, err := f.Diff(t)
		if err != nil {
			return err
		}
		if len(drift) > 0 && fix.Empty() {
			return errors.Join(drift...)
		}
		if err := f.Write(fix); err != nil {
			return err
		}
		fixed = fixed || !fix.Empty()
	}
	missing, err := f.missing(p)
	if err != nil {
		return err
	}
	var b nft.Batch
	for _, l := range missing {
		if l.First {
			b.InsertRule(f.Table, l.Chain, l.Rule)
		} else {
			b.AddRule(f.Table, l.Chain, l.Rule)
		}
	}
	if err := f.Write(&b); err != nil {
		return err
	}
	f.known.add(p)
	if fixed || !b.Empty() {
		return unix.ERESTART
	}
	return nil
}

// A ChainSet holds the chains and sets that some attachments share in a table, and the rules in base chains that jump
// to them. Chains and sets are named after a hash of their contents. A ChainSet is made once and stays until GC.
type ChainSet struct {
	nft.Table
	Jumps []JumpRule
}

// A JumpRule is a rule in a chain of the static part that jumps to a chain of a ChainSet.
type JumpRule struct {
	Chain string
	Rule  *nft.Rule
	First bool // before all other lines
}

// NewChainSet returns an empty ChainSet of a table.
func NewChainSet(t *nft.Table) *ChainSet {
	return &ChainSet{Table: nft.Table{Family: t.Family, Name: t.Name, Ends: t.Ends}}
}

// Jump adds rules to a chain of the static part, if they are missing: at its end, or first before all others.
func (p *ChainSet) Jump(chain string, first bool, rules ...*nft.Rule) {
	for _, r := range rules {
		p.Jumps = append(p.Jumps, JumpRule{Chain: chain, Rule: r, First: first})
	}
}

// CodeHash returns a short hash of what rules do.
func CodeHash(rules []*nft.Rule) string {
	var all strings.Builder
	for _, r := range rules {
		all.WriteString(r.Code())
	}
	return identity.ShortHash(all.String())
}

// Share adds a chain for the members of a set, and returns the set. Both are named prefix and a hash. A rule in the
// chain from jumps to the new chain; way returns the condition of that rule.
func (p *ChainSet) Share(from, prefix string, way func(*nft.Set) *nft.Rule,
	rules []*nft.Rule) *nft.Set {
	c := &nft.Chain{Name: prefix + "_" + CodeHash(rules), Rules: rules}
	s := sharedSet(&p.Table, c.Name)
	p.Chains, p.Sets = append(p.Chains, c), append(p.Sets, s)
	p.Jump(from, false, way(s).Jump(c.Name))
	return s
}

// missing are the lines of a part that the table lacks. The chains are as long as there are different networks
// and conditions on this host.
func (f Tx) missing(p *ChainSet) (missing []JumpRule, err error) {
	got := map[string][]string{}
	for _, l := range p.Jumps {
		if got[l.Chain] == nil {
			if got[l.Chain], err = f.Rules(f.Table, l.Chain); err != nil {
				return nil, err
			}
		}
		if !slices.Contains(got[l.Chain], l.Rule.Comment()) {
			missing = append(missing, l)
		}
	}
	return missing, nil
}

// Standing returns the differences of the table's static part and of a chain set: what is missing or different.
func (f Tx) Standing(p *ChainSet) (d resource.Drift, err error) {
	found, err := f.DiffOnce(f.Table, *f.gen)
	if err != nil || len(found) > 0 {
		return found, err // the part would say the same again where the table is missing
	}
	if found, err = f.DiffOnce(&p.Table, *f.gen); err != nil {
		return nil, err
	}
	missing, err := f.missing(p)
	for _, l := range missing {
		found = append(found, spec.Missing(fmt.Sprintf("nft rule %v %s %q", f.Table, l.Chain, l.Rule.Comment())))
	}
	return found, err
}

// Compare returns the differences of the static part and of a chain set as an error, and those that rest finds in the
// table, if the table exists.
func (f Tx) Compare(p *ChainSet, rest func() (resource.Drift, error)) error {
	d, err := f.Standing(p)
	if err != nil || d.All() {
		return errors.Join(err, d.Err())
	}
	more, err := rest()
	if err != nil {
		return err
	}
	return append(d, more...).Err()
}

// Verify compares the elements of kinds whose elements have exactly one owner.
func (f Tx) Verify(p *ChainSet, o spec.Owner, kind uint32, want []nft.Elem) error {
	return f.Compare(p, func() (resource.Drift, error) { return f.VerifyElements(o, kind, want) })
}
