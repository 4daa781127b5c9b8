package filter

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/nft"
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
	remove func(ctx context.Context, w *kernel.World, owner [8]byte) error
}

// NewKind returns the Kind of the elements that the set owners lists under these numbers.
func NewKind(name string, table func() *nft.Table, number ...uint32) plan.Kind {
	return nftKind{name, table, number, func(ctx context.Context, w *kernel.World, owner [8]byte) error {
		var errs []error
		for _, n := range number {
			errs = append(errs, RemoveElements(ctx, w, table(), owner, n, func(f Tx) error { return f.Drop(owner, n) }))
		}
		return errors.Join(errs...)
	}}
}

// NewKindRemovedBy is NewKind for elements whose removal needs more than Drop.
func NewKindRemovedBy(name string, table func() *nft.Table, number uint32,
	remove func(ctx context.Context, w *kernel.World, owner [8]byte) error) plan.Kind {
	return nftKind{name, table, []uint32{number}, remove}
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

// Owners implements plan.Kind. It reads only the set owners.
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
	known := map[[8]byte]bool{}
	for _, r := range records {
		_, tag := f.ParseEntry(r)
		net, hash, _, ok := identity.ParseTag(tag)
		number := binary.NativeEndian.Uint32(r.Key[8:]) &^ 0xffff
		if ok && net == identity.NetworkHash(network) && !known[hash] && slices.Contains(k.number, number) {
			known[hash] = true
			tags = append(tags, plan.Tag{Network: network, Hash: hash})
		}
	}
	return tags, err
}

// Remove implements plan.Kind. If there is nothing to remove, it does one look-up by key.
func (k nftKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	var errs []error
	for _, t := range tags {
		errs = append(errs, k.remove(ctx, w, t.Hash))
	}
	return errors.Join(errs...)
}
