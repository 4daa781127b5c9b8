package routing

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/addr"
)

// A sources is the record of an owner's SourceRoutings: their namespace, and what they made and moved there. A chain
// may have two: one with its own tables and one with a table of another program.
type sources struct {
	NS   kernel.Identity
	Path string
	By   map[int]sourced // by SourceRouting.Table
}

type sourced struct {
	Rules []sourceRule
	Made  []rtnl.Route
	Moved []rtnl.Route // taken out of the main table
}

type sourceRule struct {
	From  netip.Addr
	Table int
}

func (r sourceRule) rule() addr.Rule {
	return addr.Rule{Priority: sourcePriority, From: netip.PrefixFrom(r.From, r.From.BitLen()), Table: r.Table}
}

// recall returns the owner's record if it is for this namespace.
func (s SourceRouting) recall(w *kernel.World, ns *kernel.NS) (rec sources, known bool, err error) {
	if known, err = w.Store.Get(sourceRecord, s.Owner, &rec); err != nil {
		return rec, false, err
	}
	if known && rec.By != nil {
		if same, err := ns.Is(rec.NS); err != nil || same {
			return rec, same, err
		}
	}
	id, err := ns.Identity()
	return sources{NS: id, Path: ns.Path, By: map[int]sourced{}}, false, err
}

// apply creates the new routes before it removes the old ones, so that no packet is without a route.
func (rec sourced) apply(ctx context.Context, w *kernel.World, ns *kernel.NS) error {
	for _, r := range rec.Made {
		if err := rtnl.AddRoute(ns, r, false); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s: %w", said(ns, r), err)
		}
	}
	for _, r := range rec.Rules {
		if _, err := r.rule().Ensure(ctx, w); err != nil {
			return fmt.Errorf("%v: %w", r.rule(), err)
		}
	}
	for _, r := range rec.Moved {
		if err := rtnl.DelRoute(ns, r); err != nil {
			return err
		}
	}
	return nil
}

// undo undoes apply, as far as it was applied. If the link is gone, its routes are gone too.
func (rec sourced) undo(ctx context.Context, w *kernel.World, ns *kernel.NS) error {
	var errs []error
	for _, r := range rec.Moved {
		errs = append(errs, giveBack(ns, r))
	}
	for _, r := range rec.Rules {
		errs = append(errs, r.rule().Remove(ctx, w))
	}
	tables := map[rtnl.RouteFilter]bool{}
	for _, r := range rec.Made {
		errs = append(errs, rtnl.DelRoute(ns, r))
		if r.Table != rtnl.MainTable {
			tables[rtnl.RouteFilter{Family: rtnl.Family(r.Dst.Addr()), Table: r.Table, Link: r.Link}] = true
		}
	}
	for table := range tables { // it was free when we chose it, so whatever the link has in it is to go
		list, err := rtnl.Routes(ns, table)
		errs = append(errs, err)
		for _, r := range list {
			errs = append(errs, rtnl.DelRoute(ns, r))
		}
	}
	return errors.Join(errs...)
}

// giveBack restores a route in the main table.
func giveBack(ns *kernel.NS, r rtnl.Route) error { return putBack(ns, rtnl.NewRoute(ns, r, nil)) }

func (rec sources) sweep(ctx context.Context) error {
	return within(ctx, rec.Path, rec.NS, func(ns *kernel.NS) error {
		var errs []error
		for _, part := range rec.By {
			errs = append(errs, part.undo(ctx, &kernel.World{Container: ns}, ns))
		}
		return errors.Join(errs...)
	})
}
