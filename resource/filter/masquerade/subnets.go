package masquerade

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/spec"
)

// subnetMark begins the comment of a rule for a subnet that only other containers of the network have. The ADD that
// brings the subnet adds the rule to their chains, and the last DEL or GC of the subnet removes it.
const subnetMark = "subnet of "

// keeps is the rule of a chain for such a subnet.
func keeps(chain string, subnet netip.Prefix, o spec.Owner) xtables.Rule {
	return xtables.Rulef(chain, "-d %v -m comment --comment %s -j ACCEPT", subnet,
		iptables.ReferenceComment(subnetMark, o))
}

// subnets are the subnets of addresses of a family. An address alone, as of a point-to-point link, has none: each chain
// would have a rule for each container.
func subnets(addrs []netip.Prefix, v6 bool) []netip.Prefix {
	alone := func(p netip.Prefix) bool { return p.IsSingleIP() || p.Bits() == 0 }
	return slices.DeleteFunc(filter.Masked(filter.OfFamily(addrs, v6)), alone)
}

func addrsOf(records []iptables.Record) (all []netip.Prefix) {
	for _, r := range records {
		all = append(all, r.Addrs...)
	}
	return all
}

// draftOthers adds the rules for m's subnets to the chains of other containers, in the order that own has.
func (m SourcesIPTables) draftOthers(others []iptables.Record, v6 bool, d *iptables.Draft) {
	for _, r := range others {
		o := spec.Owner{Network: m.Owner.Network, ContainerID: r.ContainerID, IfName: r.IfName}
		chain := ContainerChain(o)
		for _, subnet := range subnets(m.From, v6) {
			has := func(r xtables.Rule) bool { return r.Jump == "ACCEPT" && r.Dst == subnet }
			rules := d.Saved[chain]
			if len(rules) == 0 || slices.ContainsFunc(rules, has) {
				continue
			}
			follows := func(r xtables.Rule) bool {
				first := filter.Masked([]netip.Prefix{r.Dst, subnet})[0]
				return strings.HasPrefix(r.Comment, subnetMark) && first == subnet
			}
			at := slices.IndexFunc(rules, follows)
			if at < 0 {
				at = len(rules) - 1 // before that which masquerades
			}
			rule := keeps(chain, subnet, o)
			d.Lines = append(d.Lines, rule.InsertAt(at+1))
			d.Saved[chain] = slices.Insert(slices.Clone(rules), at, rule)
		}
	}
}

// leaveOthers removes the rules for subnets that no other attachment has from the chains of other containers.
func (m SourcesIPTables) leaveOthers(ctx context.Context, w *kernel.World, v6 bool) error {
	var mine iptables.Record
	_, err := w.Store.Get(IPTablesRecord, m.Owner, &mine)
	if err != nil {
		return err
	}
	same, others, err := m.neighbours(w)
	if err != nil {
		return err
	}
	needed := subnets(slices.Concat(same, addrsOf(others)), v6)
	gone := slices.DeleteFunc(subnets(mine.Addrs, v6), func(p netip.Prefix) bool { return slices.Contains(needed, p) })
	if len(gone) == 0 || len(others) == 0 {
		return nil
	}

	var chains []string
	for _, r := range others {
		chains = append(chains, ContainerChain(spec.Owner{Network: m.Owner.Network, ContainerID: r.ContainerID}))
	}
	slices.Sort(chains)
	chains = slices.Compact(chains)
	tables, err := iptables.Having(w, v6, "nat", chains...)
	errs := []error{err}
	for _, x := range tables {
		rules, err := x.List(ctx, chains...)
		errs = append(errs, err, x.Remove(ctx, slices.DeleteFunc(rules, func(r xtables.Rule) bool {
			return !strings.HasPrefix(r.Comment, subnetMark) || !slices.Contains(gone, r.Dst)
		}), nil))
	}
	return errors.Join(errs...)
}
