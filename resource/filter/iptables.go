package filter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/kernel/xtables"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// The backends that iptables is asked for have the chains, rules and comments of the reference plugins, so
// that either removes what the other made. Nothing in them tells the interfaces of one container on one network
// apart but the addresses; whose these are is remembered in /run, as the rules die with the boot too.

// IPTables is the program and what it speaks to, which the iptables backends need. Backend is the key of the
// configuration that asked for it.
type IPTables struct {
	Backend string
	Table   string
}

func (i IPTables) String() string { return "iptables -t " + i.Table }

// Ensure implements plan.Resource: the host has it or not.
func (i IPTables) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, i.Verify(ctx, w)
}

// Verify implements plan.Resource.
func (i IPTables) Verify(_ context.Context, w *kernel.World) error {
	x, err := xtables.TableOf(w.Host, false, i.Table)
	if err == nil {
		err = x.Installed()
	}
	if err != nil {
		return spec.Errorf(spec.CodeConfig, "%s: \"iptables\": %w; or say \"nftables\", which needs no program", i.Backend,
			err)
	}
	return nil
}

// referenceComment is the reference's comment on rules, which xt_comment has 255 bytes for.
func referenceComment(what string, o spec.Owner) string {
	s := fmt.Sprintf("%sname: %q id: %q", what, o.Network, o.ContainerID)
	return s[:min(len(s), 255)]
}

// ParseReferenceComment is the reverse. Names are of characters that need no escape.
func ParseReferenceComment(what, comment string) (o spec.Owner, ok bool) {
	n, err := fmt.Sscanf(comment, what+"name: %q id: %q", &o.Network, &o.ContainerID)
	return o, err == nil && n == 2
}

// An iptRecord is what is remembered of an attachment's rules.
type iptRecord struct {
	ContainerID, IfName string
	Addrs               []netip.Prefix // each with its subnet's length
	Link                int            // index of the host end; 0 is unknown
}

func (r iptRecord) has(a netip.Addr) bool {
	return slices.ContainsFunc(r.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// The kinds of records.
const (
	IPTPublishedRecord  = "iptpublish"
	IPTMasqueradeRecord = "iptmasquerade"
)

func rememberIPT(w *kernel.World, kind string, o spec.Owner, addrs []netip.Prefix) error {
	r := iptRecord{ContainerID: o.ContainerID, IfName: o.IfName, Addrs: addrs}
	if l, err := resource.HostEnd(w, o.IfName); err != nil {
		return err
	} else if l != nil {
		r.Link = l.Index
	}
	return w.Store.Put(kind, o, r)
}

// natRules are what an attachment has in the tables nat of both families, where it has addresses.
type natRules interface {
	draft(ctx context.Context, w *kernel.World, x *xtables.Table, d *IPTDraft) error // nothing changes without lines
	open(context.Context, *kernel.World) (changed bool, err error)                   // what comes before the rules
	remove(context.Context, *kernel.World) error
}

// ensureNAT makes the rules for addresses of an attachment, and remembers before whose these are. The chain is its own.
func ensureNAT(ctx context.Context, w *kernel.World, kind, chain string, o spec.Owner, addrs []netip.Prefix,
	rules natRules) (changed bool, err error) {
	err = WithIPTables(ctx, func() error {
		var known iptRecord
		had, err := w.Store.Get(kind, o, &known)
		if err != nil {
			return err
		}
		var apply []func() error
		for _, v6 := range []bool{false, true} {
			if len(OfFamily(addrs, v6)) == 0 {
				continue
			}
			x, err := IPTWith(w, v6, "nat", chain)
			if err != nil {
				return err
			}
			saved, err := x.Save(ctx)
			if err != nil {
				return err
			}
			d := &IPTDraft{Saved: saved, Made: map[string]bool{}}
			if err := rules.draft(ctx, w, x, d); err != nil {
				return err
			}
			if len(d.Lines) > 0 {
				if err := x.Installed(); err != nil {
					return err
				}
				apply = append(apply, func() error { return x.Apply(ctx, declaredFirst(d.Lines)...) })
			}
		}
		if changed, err = rules.open(ctx, w); err != nil {
			return err
		}
		if !had || !slices.Equal(known.Addrs, addrs) {
			if err := rememberIPT(w, kind, o, addrs); err != nil {
				return err
			}
			changed = true
		}
		for _, do := range apply {
			if err := do(); err != nil {
				return errors.Join(err, rules.remove(ctx, w))
			}
			changed = true
		}
		return nil
	})
	return changed && err == nil, err
}

// removeNAT removes the rules of an attachment where something of them is remembered, or one of the chains is there.
// Most of the time there is not.
func removeNAT(ctx context.Context, w *kernel.World, kind string, o spec.Owner, rules natRules,
	chains ...string) error {
	there, err := w.Store.Get(kind, o, &iptRecord{})
	for _, v6 := range []bool{false, true} {
		if !there && err == nil {
			var all []*xtables.Table
			all, err = IPTHaving(w, v6, "nat", chains...)
			there = len(all) > 0
		}
	}
	if err != nil || !there {
		return err
	}
	return WithIPTables(ctx, func() error { return rules.remove(ctx, w) })
}

// changeHaving changes the tables filter, of both families and variants, that have a chain: change says by which lines,
// of the rules there. Own says that these are owners' own rules. Where there is no such chain, the kernel says so and
// nothing is executed.
func changeHaving(ctx context.Context, w *kernel.World, chain string, own bool,
	change func(map[string][]xtables.Rule) ([]string, error)) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		tables, err := IPTHaving(w, v6, "filter", chain)
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
				errs = append(errs, withOwnRules(ctx, w, do))
			} else {
				errs = append(errs, WithIPTables(ctx, do))
			}
		}
	}
	return errors.Join(errs...)
}

// iptRecords are the records of a network's attachments.
func iptRecords(w *kernel.World, kind, network string) (map[[8]byte]iptRecord, error) {
	return resource.DecodeRecords[iptRecord](w.Store.Records(kind, network))
}

// survivors are the addresses of the container that are not o's: rules for them stay when o goes.
func survivors(w *kernel.World, kind string, o spec.Owner) (addrs []netip.Addr, err error) {
	records, err := iptRecords(w, kind, o.Network)
	for _, r := range records {
		if r.ContainerID == o.ContainerID && r.IfName != o.IfName {
			for _, p := range r.Addrs {
				addrs = append(addrs, p.Addr())
			}
		}
	}
	if err != nil || w.Container == nil {
		return addrs, err
	}
	links, err := rtnl.Links(w.Container)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Name == o.IfName || l.Name == "lo" {
			continue
		}
		list, err := rtnl.Addrs(w.Container, l.Index)
		if err != nil {
			return nil, err
		}
		for _, a := range list {
			addrs = append(addrs, a.Prefix.Addr())
		}
	}
	return addrs, nil
}

// IPTWith is the table by the variant that has the chain, else by the one that has the table.
func IPTWith(w *kernel.World, v6 bool, table, chain string) (*xtables.Table, error) {
	all, err := IPTHaving(w, v6, table, chain)
	if err != nil {
		return nil, err
	}
	if len(all) > 0 {
		return all[0], nil
	}
	return xtables.TableOf(w.Host, v6, table)
}

// IPTHaving are the tables, by either variant, that have one of the chains.
func IPTHaving(w *kernel.World, v6 bool, table string, chains ...string) (all []*xtables.Table, err error) {
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

// An IPTDraft is a change of one table while it is written.
type IPTDraft struct {
	Saved map[string][]xtables.Rule
	Lines []string
	Made  map[string]bool
}

// Chain makes a chain if there is none.
func (d *IPTDraft) Chain(name string) {
	if _, ok := d.Saved[name]; !ok && !d.Made[name] {
		d.Lines = append(d.Lines, "-N "+name)
		d.Made[name] = true
	}
}

// Has adds a rule where it is missing, at the end of its chain or as the first one.
func (d *IPTDraft) Has(r xtables.Rule, first bool) {
	if slices.ContainsFunc(d.Saved[r.Chain], r.Same) {
		return
	}
	if first {
		d.Lines = append(d.Lines, r.Insert())
	} else {
		d.Lines = append(d.Lines, r.Append())
	}
}

// drop removes a chain and the rules in others that lead there.
func (d *IPTDraft) drop(chain string, from ...string) {
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

// iptOwners lists the attachments of a network that have rules in iptables by our records, which name the whole owner.
func iptOwners(record string) resource.OwnersFunc {
	return func(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
		records, err := iptRecords(w, record, network)
		for hash, r := range records {
			if o := (spec.Owner{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}); identity.OwnerHash(o) == hash {
				tags = append(tags, plan.TagOf(o))
			}
		}
		return tags, err
	}
}
