package filter

import (
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
)

// RemoveElements calls drop to remove an owner's elements of a kind, if there are any.
func RemoveElements(ctx context.Context, w *kernel.World, t *nft.Table, owner [8]byte, kind uint32,
	drop func(Tx) error) error {
	conn, err := nft.Open(w.Host)
	if err != nil {
		return err
	}
	have, err := Tx{Conn: conn, Table: t}.Entries(owner, kind)
	if err == nil && len(have) > 0 {
		err = Transact(ctx, w, t, drop)
	}
	return ExceptUnavailable(err)
}

// An nftKind is the Kind of what attachments have in one of our nf_tables tables, by the entries in its map owners.
type nftKind struct {
	name   string
	table  func() *nft.Table
	number []uint32
	place  PlaceOf
	remove func(ctx context.Context, w *kernel.World, owner [8]byte) error
}

// NewKind returns the Kind of the elements that the set owners lists under these numbers.
func NewKind(name string, table func() *nft.Table, number ...uint32) plan.Kind {
	return nftKind{name, table, number, nil, func(ctx context.Context, w *kernel.World, owner [8]byte) error {
		var errs []error
		for _, n := range number {
			errs = append(errs, RemoveElements(ctx, w, table(), owner, n, func(f Tx) error { return f.Drop(owner, n) }))
		}
		return errors.Join(errs...)
	}}
}

// NewKindRemovedBy is NewKind for elements whose removal needs more than Drop. Some may be listed under the name of
// another one: see PlaceOf.
func NewKindRemovedBy(name string, table func() *nft.Table, number uint32, place PlaceOf,
	remove func(ctx context.Context, w *kernel.World, owner [8]byte) error) plan.Kind {
	return nftKind{name, table, []uint32{number}, place, remove}
}

// SharedChainKind returns the Kind of chains and sets of our tables that attachments share. They belong to no
// attachment, so only GC removes them, when no attachment uses them.
func SharedChainKind() plan.Kind {
	return resource.NewKind("shared nft chains",
		resource.KindFuncs{Tidy: func(ctx context.Context, w *kernel.World, _ string, _ bool) error {
			var errs []error
			for _, t := range []*nft.Table{Inet(), Bridge()} {
				errs = append(errs, ExceptUnavailable(Transact(ctx, w, t, Tx.prune)))
			}
			return errors.Join(errs...)
		}})
}

// Name implements plan.Kind.
func (k nftKind) Name() string { return k.name }

// Owners implements plan.Kind. It reads the set owners, and finds what owners does not list by the comments of the
// elements themselves. The field Found of a tag is true if there is such an element.
func (k nftKind) Owners(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
	conn, err := nft.Open(w.Host)
	if err != nil {
		return nil, err
	}
	f := Tx{Conn: conn, Table: k.table()}
	entries, err := f.AllEntries()
	if err != nil {
		return nil, ExceptUnavailable(err)
	}
	known := map[[8]byte]bool{}
	add := func(owner [8]byte, found any) {
		if !known[owner] {
			known[owner] = true
			tags = append(tags, plan.Tag{Network: network, Hash: owner, Found: found})
		}
	}
	unlisted, err := f.unlisted(entries, network, k.place, k.number...)
	for _, u := range unlisted {
		add(u.Owner, true)
	}
	for _, e := range entries {
		if e.Network == identity.NetworkHash(network) && slices.Contains(k.number, e.Kind) {
			add(e.Owner, nil)
		}
	}
	return tags, err
}

// Remove implements plan.Kind. If there is nothing to remove, it does one look-up by key.
func (k nftKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	unlisted := map[[8]byte]bool{}
	for _, t := range tags {
		if t.Found == true {
			unlisted[t.Hash] = true
		}
	}
	var errs []error
	if len(unlisted) > 0 {
		errs = append(errs, Transact(ctx, w, k.table(), func(f Tx) error {
			_, err := f.ListAgain(tags[0].Network, k.place, func(o [8]byte) bool { return unlisted[o] }, k.number...)
			return err
		}))
	}
	for _, t := range tags {
		errs = append(errs, k.remove(ctx, w, t.Hash))
	}
	return errors.Join(errs...)
}
