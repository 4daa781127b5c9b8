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
	if Unavailable(err) {
		return nil // what the kernel cannot have is removed
	}
	return err
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
				if err := Transact(ctx, w, t, Tx.prune); !Unavailable(err) {
					errs = append(errs, err)
				}
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
	records, err := f.List(OwnersSet(f.Table))
	if Unavailable(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	unlisted, err := f.Unlisted(records, network, k.place, k.number...)
	known := map[[8]byte]bool{}
	for _, u := range unlisted {
		if !known[u.Hash] {
			known[u.Hash] = true
			tags = append(tags, plan.Tag{Network: network, Hash: u.Hash, Found: true})
		}
	}
	for _, r := range records {
		_, tag := f.ParseEntry(r)
		net, hash, _, ok := identity.ParseTag(tag)
		ofKind := slices.Contains(k.number, numberOf(r)&^0xffff)
		if ok && net == identity.NetworkHash(network) && !known[hash] && ofKind {
			known[hash] = true
			tags = append(tags, plan.Tag{Network: network, Hash: hash})
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
		errs = append(errs, k.relist(ctx, w, tags[0].Network, unlisted))
	}
	for _, t := range tags {
		errs = append(errs, k.remove(ctx, w, t.Hash))
	}
	return errors.Join(errs...)
}

// relist has the set owners list all elements of some owners, so that they can be removed.
func (k nftKind) relist(ctx context.Context, w *kernel.World, network string, of map[[8]byte]bool) error {
	return Transact(ctx, w, k.table(), func(f Tx) error {
		records, err := f.List(OwnersSet(f.Table))
		if err != nil {
			return err
		}
		all, err := f.Unlisted(records, network, k.place, k.number...)
		if err != nil {
			return err
		}
		return f.Relist(records, slices.DeleteFunc(all, func(u Unlisted) bool { return !of[u.Hash] }))
	})
}
