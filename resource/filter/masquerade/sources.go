package masquerade

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// Sources are addresses of an attachment whose outgoing packets are masqueraded. Packets that leave the network get
// the address of the outgoing link, or SNATTo. Packets to the prefixes of From, to other addresses of the network, to
// multicast addresses and to Except keep their source. Packets to Force never keep it, except multicast.
//
// An address is an element of two sets: of those who masquerade alike, whose chain is made once, and of all of its
// network, which that chain asks for destinations in other subnets. Several owners may have one address if networks
// overlap. The element is removed with the last of them.
type Sources struct {
	Owner  spec.Owner
	From   []netip.Prefix // the addresses, each with its subnet's length; empty while they are unknown
	Except []netip.Prefix
	Force  []netip.Prefix // what is masqueraded even inside the network, or where Except has it
	SNATTo []netip.Addr   // the source address that is given instead, at most one of a family; none: that of the link

	// Cluster says that the network is one of a cluster: packets to the containers of its nodes keep their source. See
	// Nodes.
	Cluster bool
}

func (m Sources) String() string {
	return resource.Line("masquerade", resource.Prefixes("saddr", m.From), resource.Prefixes("daddr !=", m.Except),
		resource.Flag("daddr != containers of the cluster", m.Cluster),
		resource.Prefixes("force daddr", m.Force), resource.Addrs("snat to", m.SNATTo))
}

// ValidSNATTo returns nil if the addresses can be sources: at most one of each family, and each an address to which
// answers can be routed.
func ValidSNATTo(list []netip.Addr) error {
	var have [2]netip.Addr
	for i, a := range list {
		n := 0
		if a.Is6() {
			n = 1
		}
		switch {
		case !a.IsValid():
			return spec.Errorf(spec.CodeConfig, "snatTo[%d]: \"\": want an address of this host, such as 192.0.2.1", i)
		case a.Is4In6() || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() ||
			a.IsLinkLocalUnicast():
			return spec.Errorf(spec.CodeConfig,
				"snatTo[%d]: %v: answers to it would not come back; want an address of this host that others reach, "+
					"such as 192.0.2.1 or 2001:db8::1", i, a)
		case have[n].IsValid():
			return spec.Errorf(spec.CodeConfig, "snatTo[%d]: %v: %v is of the same family; want at most one of each", i,
				a,
				have[n])
		}
		have[n] = a
	}
	return nil
}

// Ensure implements plan.Resource.
func (m Sources) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if len(m.From) == 0 {
		return false, nil
	}
	filled := false
	err = filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		part, want := m.want(f.Table)
		if err := f.EnsureBase(part); err != nil {
			return err
		}
		did, err := m.fillNodes(f)
		if err != nil {
			return err
		}
		filled = filled || did
		changed, err = f.ApplyElements(identity.OwnerHash(m.Owner), filter.KindMasquerade, want...)
		return err
	})
	return (changed || filled) && err == nil, err
}

// Verify implements plan.Resource.
func (m Sources) Verify(ctx context.Context, w *kernel.World) error {
	if len(m.From) == 0 {
		return nil
	}
	return filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		part, want := m.want(f.Table)
		if err := f.Verify(part, m.Owner, filter.KindMasquerade, want); err != nil {
			return err
		}
		missing, err := m.missingNodes(f)
		if err != nil || len(missing) == 0 {
			return err
		}
		return spec.Missing(fmt.Sprintf("nft element %v", missing[0]))
	})
}

// Remove implements plan.Remover. It needs only the owner.
func (m Sources) Remove(ctx context.Context, w *kernel.World) error {
	return Kind().Remove(ctx, w, plan.TagOf(m.Owner))
}

// want are the chain and the set of the network, one of each family, and its own elements.
func (m Sources) want(t *nft.Table) (p *filter.ChainSet, want []nft.Elem) {
	p = filter.NewChainSet(t)
	if m.Cluster { // of both families, because they are compared and filled together
		p = Nodes{Network: m.Owner.Network}.sets(t)
	}
	for _, v6 := range []bool{false, true} {
		from := filter.OfFamily(m.From, v6)
		if len(from) == 0 {
			continue
		}
		rules := []*nft.Rule{
			nft.NewRule("multicast").TowardPrefix(filter.Multicast(v6)).Return()}
		for _, p := range filter.Masked(filter.OfFamily(m.Force, v6)) {
			rules = append(rules, m.translate(nft.NewRule("forced").TowardPrefix(p), v6))
		}
		for _, p := range filter.Masked(from) {
			rules = append(rules, nft.NewRule("its own network").TowardPrefix(p).Return())
		}
		network := filter.NetworkSet(t, v6, m.Owner.Network)
		rules = append(rules, nft.NewRule("its network's other subnets").Toward(network).Return())
		if m.Cluster {
			nodes := filter.NodesSet(t, v6, m.Owner.Network)
			rules = append(rules, nft.NewRule("containers of its cluster").Toward(nodes).Return())
		}
		for _, p := range filter.Masked(filter.OfFamily(m.Except, v6)) {
			rules = append(rules, nft.NewRule("excepted").TowardPrefix(p).Return())
		}
		rules = append(rules, m.translate(nft.NewRule("all else"), v6))
		set := p.Share("masquerading", "masquerade_"+filter.FamilyName(v6), func(s *nft.Set) *nft.Rule {
			return nft.NewRule("a network").From(s)
		}, rules)
		p.Sets = append(p.Sets, network)
		for _, a := range from {
			for _, s := range []*nft.Set{set, network} {
				if e := filter.Owned(m.Owner, s, a.Addr()); !filter.Has(want, e) {
					want = append(want, e)
				}
			}
		}
	}
	return p, want
}

// translate ends a rule with the source address that was chosen for the family, or with that of the link.
func (m Sources) translate(r *nft.Rule, v6 bool) *nft.Rule {
	if a, ok := m.snatTo(v6); ok {
		return r.SNAT(a)
	}
	return r.Masquerade()
}

// snatTo returns the source address that was chosen for a family.
func (m Sources) snatTo(v6 bool) (a netip.Addr, ok bool) {
	for _, a := range m.SNATTo {
		if a = a.Unmap(); a.Is6() == v6 {
			return a, true
		}
	}
	return a, false
}

// Traits implements resource.Describer.
func (m Sources) Traits() resource.Traits {
	is := resource.Traits{Effect: resource.Opens}
	if len(m.From) > 0 {
		is.Network = resource.Network{Marks: []string{"masquerade"}, Masquerades: m.masquerades}
	}
	return is
}

// masquerades reports whether packets from an address of the container get another source.
func (m Sources) masquerades(src, dst netip.Addr) bool {
	has := func(p netip.Prefix) bool { return p.Contains(dst) }
	for _, from := range m.From {
		if from.Addr() != src || dst.IsMulticast() {
			continue
		}
		kept := has(from.Masked()) || slices.ContainsFunc(m.Except, has) ||
			m.Cluster && slices.ContainsFunc(granted(m.Owner.Network), has)
		return !kept || slices.ContainsFunc(m.Force, has)
	}
	return false
}

// Kind returns the Kind of Sources.
func Kind() plan.Kind { return filter.NewKind("masquerade", filter.Inet, filter.KindMasquerade) }
