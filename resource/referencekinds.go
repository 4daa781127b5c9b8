package resource

import (
	"context"
	"errors"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/spec"
)

// ReferenceChainKind is the Kind of the chains that the reference's portmap, bridge and ptp make in iptables, as GC finds them by their
// comments. DEL finds them by their names, which are those of our own iptables backends.
type ReferenceChainKind struct{}

// Name implements plan.Kind.
func (ReferenceChainKind) Name() string { return "the reference's iptables chain" }

// A referenceChain is a chain of an attachment, and whether it publishes ports or masquerades.
type referenceChain struct {
	name          string
	v6, publishes bool
}

// Owners implements plan.Kind. A comment names the network and the container.
func (ReferenceChainKind) Owners(ctx context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
	var errs []error
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
				var o spec.Owner
				switch {
				case pok && published.Network == network && r.Jump == dnatChain(published):
					o = published
				case mok && masqueraded.Network == network && r.Jump == masqueradeChain(masqueraded):
					o = masqueraded
				}
				if o.ContainerID != "" && !seen[r.Jump] {
					seen[r.Jump] = true
					tags = append(tags, plan.Tag{Network: network, Found: referenceChain{r.Jump, v6, pok},
						Could: func(valid spec.Owner) bool { return valid.ContainerID == o.ContainerID }})
				}
			}
		}
	}
	return tags, errors.Join(errs...)
}

// Remove implements plan.Kind.
func (ReferenceChainKind) Remove(ctx context.Context, w *kernel.World, tags ...plan.Tag) error {
	return forEach(w, "", tags, func(t plan.Tag) error {
		c, found := t.Found.(referenceChain)
		if !found {
			return nil
		}
		return withIPTables(ctx, func() error {
			if !c.publishes {
				return removeMasquerade(ctx, w, c.v6, c.name, nil)
			}
			flows, err := removePublished(ctx, w, c.v6, c.name, nil)
			flush(w, flows)
			return err
		})
	})
}

// ReferenceMasqueradeKind is the Kind of what the reference's bridge and ptp have in table inet cni_plugins_masquerade.
type ReferenceMasqueradeKind struct{}

// Name implements plan.Kind.
func (ReferenceMasqueradeKind) Name() string { return "the reference's masquerade in nftables" }

// Owners implements plan.Kind.
func (ReferenceMasqueradeKind) Owners(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
	err = eachReferenceMasquerade(w, func(mark string) bool {
		if strings.HasPrefix(mark, referenceMarkHash(network)+"-") {
			tags = append(tags, plan.Tag{Network: network, Found: mark, Could: func(o spec.Owner) bool { return referenceMark(o) == mark }})
		}
		return false
	})
	return tags, err
}

// Remove implements plan.Kind.
func (ReferenceMasqueradeKind) Remove(_ context.Context, w *kernel.World, tags ...plan.Tag) error {
	marks := map[string]bool{}
	for _, t := range tags {
		mark, found := t.Found.(string)
		if !found {
			mark = referenceMark(t.Owner)
		}
		marks[mark] = true
	}
	return eachReferenceMasquerade(w, func(mark string) bool { return marks[mark] })
}

// ReferencePortKind is the Kind of what the reference's portmap has in nftables, as DEL finds it: it carries no network's name.
func ReferencePortKind() plan.Kind {
	return funcKind{name: "the reference's ports in nftables", remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
		return ReferencePorts{Owner: t.Owner}.Remove(ctx, w)
	}}
}

// ReferenceSpoofCheckKind is the Kind of what the reference's bridge has for macspoofchk, as DEL finds it.
func ReferenceSpoofCheckKind() plan.Kind {
	return funcKind{name: "the reference's MAC check", remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
		return ReferenceSpoofCheck{Owner: t.Owner}.Remove(ctx, w)
	}}
}

// ReferenceForwardKind is the Kind of what the reference's firewall has in iptables, as DEL finds it by the result's addresses.
func ReferenceForwardKind() plan.Kind {
	return funcKind{name: "the reference's accepts in iptables", remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
		f := ReferenceFirewall{Owner: t.Owner}
		if t.Prev != nil {
			for _, ip := range t.Prev.IPs {
				f.Addrs = append(f.Addrs, ip.Address.Addr().Unmap())
			}
		}
		return f.Remove(ctx, w)
	}}
}
