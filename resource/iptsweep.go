package resource

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// SweepIPTables removes what the network's attachments have in iptables, of every owner that is not among valid:
// what is remembered, and what the comments of the reference say.
func SweepIPTables(ctx context.Context, w *kernel.World, network string, valid []spec.Owner) error {
	containers := map[string]bool{}
	for _, o := range valid {
		containers[o.ContainerID] = true
	}
	dead := func(o spec.Owner, ok bool) bool {
		return ok && o.Network == network && !containers[o.ContainerID]
	}
	errs := []error{sweepRecords(ctx, w, network, valid), removeFormerMasquerade(w, func(mark string) bool {
		return strings.HasPrefix(mark, formerHash(network)+"-") && !slices.ContainsFunc(valid, func(o spec.Owner) bool { return formerMark(o) == mark })
	})}
	for _, v6 := range []bool{false, true} {
		for _, v := range []kernel.IPTVariant{kernel.IPTNFT, kernel.IPTLegacy} {
			x := w.Host.IPTables(v, v6, "nat")
			there, err := x.HasChain("CNI-")
			if err != nil || !there {
				errs = append(errs, err)
				continue
			}
			rules, err := x.List(ctx, hostportDNAT, "POSTROUTING")
			errs = append(errs, err)
			seen := map[string]bool{}
			for _, r := range rules {
				published, pok := parseReferenceComment("dnat ", r.Comment)
				masqueraded, mok := parseReferenceComment("", r.Comment)
				switch {
				case seen[r.Jump]:
				case dead(published, pok) && r.Jump == dnatChain(published):
					errs = append(errs, withIPTables(ctx, func() error {
						flows, err := removePublished(ctx, w, v6, r.Jump, nil)
						flush(w, flows)
						return err
					}))
				case dead(masqueraded, mok) && r.Jump == masqueradeChain(masqueraded):
					errs = append(errs, withIPTables(ctx, func() error { return removeMasquerade(ctx, w, v6, r.Jump, nil) }))
				}
				seen[r.Jump] = true
			}
		}
	}
	return errors.Join(errs...)
}

func sweepRecords(ctx context.Context, w *kernel.World, network string, valid []spec.Owner) error {
	var errs []error
	for _, kind := range []string{iptPublished, iptMasquerade} {
		records, err := iptRecords(w, kind, network)
		errs = append(errs, err)
		for hash, r := range records {
			o := spec.Owner{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}
			if kernel.OwnerHash(o) != hash || slices.Contains(valid, o) {
				continue
			}
			// Nobody is in the container's namespace here, so only records tell what survives.
			if kind == iptPublished {
				err = PublishIPTables{Publish: Publish{Owner: o}}.Remove(ctx, w)
			} else {
				err = MasqueradeIPTables{Masquerade{Owner: o}}.Remove(ctx, w)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
