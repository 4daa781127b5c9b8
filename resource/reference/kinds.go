package reference

import (
	"context"
	"errors"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/resource/filter/masquerade"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/spec"
)

// ChainKind returns the Kind of the iptables chains that the reference's portmap, bridge and ptp make. GC finds them
// by their comments. DEL finds them by their names, which are also those of our iptables backends.
func ChainKind() plan.Kind {
	return resource.NewKind("the reference's iptables chain", resource.KindFuncs{
		Owners: referenceChains,
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			c, found := t.Found.(referenceChain)
			if !found {
				return nil
			}
			return iptables.WithLock(ctx, func(ctx context.Context) error {
				if !c.publishes {
					return masquerade.RemoveContainerChain(ctx, w, c.v6, c.name, nil)
				}
				return publish.RemoveContainerChain(ctx, w, c.v6, c.name, nil)
			})
		}})
}

// A referenceChain is a chain of an attachment, and whether it publishes ports or masquerades.
type referenceChain struct {
	name          string
	v6, publishes bool
}

// referenceChains lists them. A comment names the network and the container.
func referenceChains(ctx context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
	var errs []error
	for _, v6 := range []bool{false, true} {
		for _, v := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
			x := xtables.NewTable(w.Host, v, v6, "nat")
			there, err := x.HasChain("CNI-")
			if err != nil || !there {
				errs = append(errs, err)
				continue
			}
			rules, err := x.List(ctx, publish.ChainDNAT, "POSTROUTING")
			errs = append(errs, err)
			seen := map[string]bool{}
			for _, r := range rules {
				published, pok := iptables.ParseReferenceComment("dnat ", r.Comment)
				masqueraded, mok := iptables.ParseReferenceComment("", r.Comment)
				var o spec.Owner
				switch {
				case pok && published.Network == network && r.Jump == publish.ContainerChain(published):
					o = published
				case mok && masqueraded.Network == network && r.Jump == masquerade.ContainerChain(masqueraded):
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

// MasqueradeKind returns the Kind of rules that the reference's bridge and ptp make in table inet
// cni_plugins_masquerade.
func MasqueradeKind() plan.Kind {
	return resource.NewKind("the reference's masquerade in nftables", resource.KindFuncs{
		Owners: func(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
			err = eachReferenceMasquerade(w, func(mark string) bool {
				if strings.HasPrefix(mark, referenceMarkHash(network)+"-") {
					is := func(o spec.Owner) bool { return referenceMark(o) == mark }
					tags = append(tags, plan.Tag{Network: network, Found: mark, Could: is})
				}
				return false
			})
			return tags, err
		},
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			return Masquerade{Owner: t.Owner}.Remove(ctx, w)
		},
		Found: func(_ context.Context, w *kernel.World, tags []plan.Tag) error {
			marks := map[string]bool{}
			for _, t := range tags {
				marks[t.Found.(string)] = true
			}
			return eachReferenceMasquerade(w, func(mark string) bool { return marks[mark] })
		}})
}

// PortKind returns the Kind of nftables rules that the reference's portmap makes. Only DEL finds them, because they
// do not contain the network's name.
func PortKind() plan.Kind {
	return resource.KindByRemover("the reference's ports in nftables", nil,
		func(o spec.Owner) plan.Remover { return Ports{Owner: o} })
}

// SpoofCheckKind returns the Kind of rules that the reference's bridge makes for macspoofchk. Only DEL finds them.
func SpoofCheckKind() plan.Kind {
	return resource.KindByRemover("the reference's MAC check", nil,
		func(o spec.Owner) plan.Remover { return SpoofCheck{Owner: o} })
}

// ForwardKind returns the Kind of iptables rules that the reference's firewall makes. Only DEL finds them, by the
// addresses of the result.
func ForwardKind() plan.Kind {
	return resource.NewKind("the reference's accepts in iptables", resource.KindFuncs{Remove: func(
		ctx context.Context, w *kernel.World, t plan.Tag,
	) error {
		f := Firewall{Owner: t.Owner}
		if t.Prev != nil {
			for _, ip := range t.Prev.IPs {
				f.Addrs = append(f.Addrs, ip.Address.Addr().Unmap())
			}
		}
		return f.Remove(ctx, w)
	}})
}
