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

// An nftKind is the Kind of what attachments have in one of our nf_tables tables, by the entries in its map owners.
type nftKind struct {
	name   string
	table  func() *nft.Table
	number []uint32
}

// MasqueradeKind is the Kind of Masquerade.
func MasqueradeKind() plan.Kind { return nftKind{"masquerade", inetSets, []uint32{kindMasquerade}} }

// PublishKind is the Kind of Publish.
func PublishKind() plan.Kind { return nftKind{"published ports", inetSets, []uint32{kindPublish}} }

// IngressKind is the Kind of Ingress on a link that only the attachment has.
func IngressKind() plan.Kind {
	return nftKind{"policy on a link of its own", inetSets, []uint32{kindIngress, kindOwnSubnet}}
}

// SpoofCheckKind is the Kind of SpoofCheck.
func SpoofCheckKind() plan.Kind { return nftKind{"MAC check", bridgeSets, []uint32{kindSpoofCheck}} }

// IsolatedPortKind is the Kind of IsolatedPort.
func IsolatedPortKind() plan.Kind {
	return nftKind{"isolated bridge port", bridgeSets, []uint32{kindIsolatedPort}}
}

// SharedChainKind is the Kind of chains and sets of our tables that attachments share. They are no attachment's: GC
// removes those that none is in.
func SharedChainKind() plan.Kind {
	return resource.NewKind("shared nft chains",
		resource.KindFuncs{Tidy: func(ctx context.Context, w *kernel.World, _ string, _ bool) error {
			var errs []error
			for _, t := range []*nft.Table{inetTable(), bridgeTable()} {
				if err := withFilter(ctx, w, t, filter.prune); !unavailable(err) {
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		}})
}

// Name implements plan.Kind.
func (k nftKind) Name() string { return k.name }

// Owners implements plan.Kind. It reads the map owners alone.
func (k nftKind) Owners(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
	nft, err := nft.Open(w.Host)
	if err != nil {
		return nil, err
	}
	f := filter{Conn: nft, t: k.table()}
	records, err := f.List(ownersSet(f.t))
	if unavailable(err) {
		return nil, nil
	}
	known := map[[8]byte]bool{}
	for _, r := range records {
		_, tag := f.parseEntry(r)
		net, hash, _, ok := identity.ParseTag(tag)
		number := binary.NativeEndian.Uint32(r.Key[8:]) &^ 0xffff
		if ok && net == identity.NetworkHash(network) && !known[hash] && slices.Contains(k.number, number) {
			known[hash] = true
			tags = append(tags, plan.Tag{Network: network, Hash: hash})
		}
	}
	return tags, err
}

// Remove implements plan.Kind. Removing nothing is one look-up by key.
func (k nftKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	var errs []error
	for _, t := range tags {
		for _, n := range k.number {
			errs = append(errs, remove(ctx, w, k.table(), t.Hash, n))
		}
	}
	return errors.Join(errs...)
}
