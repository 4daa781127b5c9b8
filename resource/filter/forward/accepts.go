package forward

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
)

// Chains and comments in iptables have the names that the reference gives them, so that other programs and people
// know them. The comment on an address's rules is ours: it has the owner's tag.
const (
	commentForward    = "CNI firewall plugin rules"
	commentAdmin      = "CNI firewall plugin admin overrides"
	DefaultAdminChain = "CNI-ADMIN"
)

// accepts are the rules that a family of addresses needs in the table filter: those that lead to them, which are
// for all attachments, and their own.
func (f Forward) accepts(v6 bool) (shared, own []xtables.Rule) {
	comment := filter.CommentOf(f.Owner)
	for _, a := range OfIP(f.Addrs, v6) {
		own = append(own,
			// DNAT: what was published. The reference lacks it, so that its published ports end at a policy of drop.
			xtables.Rulef(iptables.ChainForward, "-d %v -m conntrack --ctstate RELATED,ESTABLISHED,DNAT "+
				"-m comment --comment %s -j ACCEPT", filter.Single(a), comment),
			xtables.Rulef(iptables.ChainForward, "-s %v -m comment --comment %s -j ACCEPT", filter.Single(a), comment))
	}
	return Jumps(f.AdminChain()), own
}

// Jumps returns the rules that jump to the accepts, after the administrator's chain.
func Jumps(admin string) []xtables.Rule {
	return []xtables.Rule{
		xtables.Rulef("FORWARD", "-m comment --comment %s -j %s", commentForward, iptables.ChainForward),
		xtables.Rulef(iptables.ChainForward, "-m comment --comment %s -j %s", commentAdmin, admin),
	}
}

// AdminChain is the administrator's chain, which is evaluated before the accepts.
func (f Forward) AdminChain() string { return cmp.Or(f.Admin, DefaultAdminChain) }

// warnOfDropBefore warns of a rule of another program that drops all packets before the accepts have their turn.
func warnOfDropBefore(t *xtables.Table, rules []xtables.Rule) {
	jump := slices.IndexFunc(rules, func(r xtables.Rule) bool { return r.Jump == iptables.ChainForward })
	for _, r := range rules[:max(jump, 0)] {
		if r.Words[0] == "-j" && (r.Jump == "DROP" || r.Jump == "REJECT") {
			slog.Warn("another program's rule drops the container's packets before our accepts have their turn",
				"table", t.String(), "rule", r.String(), "fix", r.Delete())
		}
	}
}

// accept puts the accepts into a table, all at once. What all accepts share is made under the lock alone.
func (f Forward) accept(ctx context.Context, w *kernel.World, t *xtables.Table) (changed bool, err error) {
	shares := false
	draft := func(d *iptables.Draft) error {
		warnOfDropBefore(t, d.Saved["FORWARD"])
		d.Chain(iptables.ChainForward)
		d.Chain(f.AdminChain())
		shared, own := f.accepts(t.V6)
		missing := iptables.Lacking(d.Saved, shared)
		if !shares && len(d.Lines)+len(missing) > 0 {
			shares, d.Lines = true, nil
			return nil
		}
		for _, r := range missing {
			// What keeps networks apart comes before what lets addresses through.
			apart := func(r xtables.Rule) bool { return r.Jump == iptables.ChainStage1 }
			d.Lines = append(d.Lines, r.InsertAt(slices.IndexFunc(d.Saved[r.Chain], apart)+2))
		}
		d.Delete(stale(d.Saved, own)...) // another address, of a former call
		d.Append(own...)
		return nil
	}
	add := func(ctx context.Context) (err error) {
		changed, err = iptables.Edit(ctx, t, draft)
		return err
	}
	if err = iptables.WithOwnRules(ctx, w, add); shares && err == nil {
		err = iptables.WithLock(ctx, add)
	}
	return changed && err == nil, err
}

// stale are rules of the same owner that are none of own.
func stale(have map[string][]xtables.Rule, own []xtables.Rule) (old []xtables.Rule) {
	for _, r := range have[iptables.ChainForward] {
		if len(own) > 0 && r.Comment == own[0].Comment && !slices.ContainsFunc(own, r.Same) {
			old = append(old, r)
		}
	}
	return old
}

// unaccept removes the accepts of a network's owners that keep does not want.
func unaccept(ctx context.Context, w *kernel.World, network [6]byte, keep func(owner [8]byte) bool) error {
	return iptables.ChangeHaving(ctx, w, iptables.ChainForward, true, func(d *iptables.Draft) error {
		for _, r := range d.Saved[iptables.ChainForward] {
			if net, owner, _, ok := identity.ParseTag(r.Comment); ok && net == network && !keep(owner) {
				d.Delete(r)
			}
		}
		return nil
	})
}

// accepted lists whose accepts of a network there are, of both families and variants.
func accepted(ctx context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
	var errs []error
	for _, v6 := range []bool{false, true} {
		tables, err := iptables.Having(w, v6, "filter", iptables.ChainForward)
		errs = append(errs, err)
		for _, t := range tables {
			rules, err := t.List(ctx, iptables.ChainForward)
			errs = append(errs, err)
			for _, r := range rules {
				if net, owner, _, ok := identity.ParseTag(r.Comment); ok && net == identity.NetworkHash(network) {
					tags = append(tags, plan.Tag{Network: network, Hash: owner})
				}
			}
		}
	}
	return tags, errors.Join(errs...)
}
