package resource

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
)

// An NFTKind is the Kind of what attachments have in one of our nf_tables tables, by the entries in its map owners.
type NFTKind struct {
	name   string
	table  func() *kernel.NFTTable
	number []uint32
}

// The kinds of elements, by the resource that has them.
func MasqueradeKind() NFTKind { return NFTKind{"masquerade", inetTable, []uint32{kindMasquerade}} }
func PublishKind() NFTKind    { return NFTKind{"published ports", inetTable, []uint32{kindPublish}} }
func IngressKind() NFTKind {
	return NFTKind{"policy on a link of its own", inetTable, []uint32{kindIngress, kindOwnSubnet}}
}
func SpoofCheckKind() NFTKind { return NFTKind{"MAC check", bridgeTable, []uint32{kindSpoofCheck}} }
func IsolatedPortKind() NFTKind {
	return NFTKind{"isolated bridge port", bridgeTable, []uint32{kindIsolatedPort}}
}

// Name implements plan.Kind.
func (k NFTKind) Name() string { return k.name }

// Owners implements plan.Kind. It reads the map owners alone.
func (k NFTKind) Owners(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
	nft, err := w.Host.NFT()
	if err != nil {
		return nil, err
	}
	f := filter{NFT: nft, t: k.table()}
	records, err := f.List(ownersSet(f.t))
	if unavailable(err) {
		return nil, nil
	}
	known := map[[8]byte]bool{}
	for _, r := range records {
		_, tag := f.parseEntry(r)
		net, hash, _, ok := kernel.ParseTag(tag)
		if ok && net == kernel.NetworkHash(network) && !known[hash] && slices.Contains(k.number, binary.NativeEndian.Uint32(r.Key[8:])&^0xffff) {
			known[hash] = true
			tags = append(tags, plan.Tag{Network: network, Hash: hash})
		}
	}
	return tags, err
}

// Remove implements plan.Kind. Removing nothing is one look-up by key.
func (k NFTKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	var errs []error
	for _, t := range tags {
		for _, n := range k.number {
			errs = append(errs, remove(ctx, w, k.table(), t.Hash, n))
		}
	}
	return errors.Join(errs...)
}

// Tidy implements plan.Tidier: chains and sets that no attachment is in.
func (k NFTKind) Tidy(ctx context.Context, w *kernel.World, _ string, _ bool) error {
	err := withFilter(ctx, w, k.table(), filter.prune)
	if unavailable(err) {
		return nil
	}
	return err
}
