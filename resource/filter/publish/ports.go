package publish

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// Ports makes ports of the host lead to the container.
//
// Only packets to an address of the host are translated, whether they arrive or are sent by the host itself. Two
// containers cannot have one port at overlapping addresses, as with bind(2). One container can have a port on several
// networks; the first one leads until its DEL. A container whose veth pair is gone has lost its ports to others.
type Ports struct {
	Owner    spec.Owner
	Mappings []Mapping
	To4, To6 netip.Prefix // the container's addresses, each with its subnet's length; invalid: none
	SNAT     bool         // masquerade what would not come back by itself: from the container, its subnet, 127.0.0.1
	MasqAll  bool         // masquerade everything that goes to these ports

	// Conditions4 and Conditions6 are what else a packet has to fulfil, in the words of nft(8) or iptables(8).
	Conditions4, Conditions6 []string
}

func (p Ports) String() string {
	ports := make([]string, len(p.Mappings))
	for i, m := range p.Mappings {
		ports[i] = m.String()
	}
	return resource.Line("publish", strings.Join(ports, ", "), resource.Opt("dnat ip to", p.To4),
		resource.Opt("dnat ip6 to", p.To6),
		resource.Flag("snat", p.SNAT), resource.Flag("masqall", p.MasqAll),
		resource.Opt("where ip", strings.Join(p.Conditions4, " ")), resource.Opt("where ip6",
			strings.Join(p.Conditions6, " ")))
}

// Traits implements resource.Describer. Permitted sources take effect in the same transaction as the port.
func (p Ports) Traits() resource.Traits {
	return resource.Traits{Effect: resource.Opens, Clears: len(p.Mappings) == 0,
		Network: resource.Network{Publishes: p.publishes}}
}

// published is what Ports come to in the table.
type published struct {
	chainSet *filter.ChainSet
	claims   []wanted
	plain    []nft.Elem // what is masqueraded on its way to the container, and who may use ports
}

// places are what owners has to name.
func (p *published) places() (all []nft.Elem) {
	for _, c := range p.claims {
		all = append(all, c.mappingOf(c.portClaim))
	}
	return append(all, p.plain...)
}

// Family returns where the ports lead in a family, if valid, and the conditions of that family.
func (p Ports) Family(v6 bool) (to netip.Prefix, conditions []string) {
	if v6 {
		return p.To6, p.Conditions6
	}
	return p.To4, p.Conditions4
}

func (p Ports) want(t *nft.Table) (*published, error) {
	pub := &published{chainSet: filter.NewChainSet(t)}
	for _, v6 := range []bool{false, true} {
		if err := p.wantFamily(t, v6, pub); err != nil {
			return nil, err
		}
	}
	return pub, nil
}

func (p Ports) wantFamily(t *nft.Table, v6 bool, pub *published) error {
	to, conditions := p.Family(v6)
	if !to.IsValid() {
		return nil
	}
	alternatives, where, err := parseConditions(conditions, v6)
	if err != nil {
		return err
	}
	ports := filter.PortMapsOf(t, v6, where)
	if where != "" {
		pub.chainSet.Sets = append(pub.chainSet.Sets, ports.Sets()...)
		pub.chainSet.Chains = append(pub.chainSet.Chains, &nft.Chain{Name: ports.Chain(), Rules: ports.Rules()})
		for _, r := range alternatives {
			pub.chainSet.Jump("conditions", false, r.Jump(ports.Chain()))
		}
	}
	list, err := spans(p.Mappings, v6)
	if err != nil {
		return err
	}
	var hairpin []span
	for _, s := range list {
		c := portClaim{
			owner:     identity.OwnerHash(p.Owner),
			comment:   filter.CommentOf(p.Owner),
			container: identity.ContainerHash(p.Owner.ContainerID),
			host:      s.host,
			first:     s.first,
			last:      s.last,
			to:        to.Addr(),
			toPort:    s.to,
		}
		pub.claims = append(pub.claims, wanted{slotOf(ports, s.proto, s.first, s.last), c})
		s.first, s.last = s.ends()
		hairpin = append(hairpin, s)
	}
	if p.SNAT || p.MasqAll {
		g := portGroup{from: "hairpin", prefix: "hairpin", rules: p.hairpinRules(to, v6),
			way: func(s *nft.Set) *nft.Rule { return nft.NewRule("a network").To(s) }}
		pub.plain = append(pub.plain, g.elements(pub.chainSet, to.Addr(), filter.CommentOf(p.Owner), hairpin)...)
	}
	pub.plain = append(pub.plain, p.allowed(t, pub.chainSet, to.Addr(), list)...)
	return nil
}

// hairpinRules masquerade what the container would answer to directly, past the host that translated it.
func (p Ports) hairpinRules(to netip.Prefix, v6 bool) []*nft.Rule {
	if p.MasqAll {
		return []*nft.Rule{nft.NewRule("from anywhere").Masquerade()}
	}
	rules := []*nft.Rule{nft.NewRule("from its own network").FromPrefix(to.Masked()).Masquerade()}
	if !v6 {
		rules = append(rules, nft.NewRule("from this host").FromPrefix(filter.Loopback()).Masquerade())
	}
	return rules
}

// Ensure implements plan.Resource.
func (p Ports) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if len(p.Mappings) == 0 {
		return false, nil
	}
	var flows []conntrack.UDPFlow
	var fresh []wanted
	paths := p.paths(w)
	if err := p.heldByOthers(ctx, w); err != nil { // with its own lock, which is never waited for under that of nft
		return false, err
	}
	err = filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		pub, err := p.want(f.Table)
		if err != nil {
			return err
		}
		var b nft.Batch // before anything is made: a conflict leaves nothing
		if flows, fresh, err = writeClaims(f, paths, &b, pub); err != nil {
			return err
		}
		// with what keeps neighbours out of 127/8, before they could come in
		if err := f.EnsureBase(pub.chainSet); err != nil {
			return err
		}
		wrote, err := paths.open()
		if err != nil {
			return err
		}
		changed = wrote || !b.Empty()
		return f.Commit(&b)
	})
	if err != nil {
		return false, err
	}
	FlushFlows(w, flows)
	for _, c := range fresh {
		if c.proto == kernel.SCTP || filter.IsTogether(ctx) { // in a repair it was said when it was published first
			continue
		}
		if port, ok := sockdiag.Listens(w.Host, c.proto, c.host, c.first, c.last); ok {
			slog.Warn("a process listens on a port that is published now: packets to the host's addresses go to the "+
				"container instead", "port", port, "protocol", kernel.ProtoName(c.proto), "attachment",
				p.Owner.String())
		}
	}
	return changed, paths.ensured(ctx)
}

// Verify implements plan.Resource.
func (p Ports) Verify(ctx context.Context, w *kernel.World) error {
	if len(p.Mappings) == 0 {
		return nil
	}
	return filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		pub, err := p.want(f.Table)
		if err != nil {
			return err
		}
		return f.Compare(pub.chainSet, func() (resource.Drift, error) {
			d, err := publishedDrift(f, p.Owner, pub)
			if err != nil {
				return nil, err
			}
			d.Add(p.paths(w).drift())
			return d, nil
		})
	})
}

// Remove implements plan.Remover. It needs only the owner.
func (p Ports) Remove(ctx context.Context, w *kernel.World) error {
	return Kind().Remove(ctx, w, plan.TagOf(p.Owner))
}

// Kind returns the Kind of Ports.
func Kind() plan.Kind {
	return filter.NewKindRemovedBy("published ports", filter.Inet, filter.KindPublish, placeOfClaim,
		func(ctx context.Context, w *kernel.World, owner [8]byte) error {
			var flows []conntrack.UDPFlow
			err := filter.RemoveElements(ctx, w, filter.Inet(), owner, filter.KindPublish,
				func(f filter.Tx) (err error) {
					flows, err = dropPublished(f, owner)
					return err
				})
			if err == nil {
				FlushFlows(w, flows)
			}
			return err
		})
}

// writeClaims writes into b what turns the owner's claims into those of pub. A claim of another container on the same
// ports is an error if that container is alive. If it is gone, everything that it published is removed.
func writeClaims(f filter.Tx, x paths, b *nft.Batch,
	pub *published) (flows []conntrack.UDPFlow, fresh []wanted, err error) {
	me, link := identity.OwnerHash(x.Owner), uint32(0)
	if l, err := x.hostEnd(); err != nil {
		return nil, nil, err
	} else if l != nil {
		link = uint32(l.Index)
	}
	have, err := f.Entries(me, filter.KindPublish)
	if err != nil {
		return nil, nil, err
	}
	_, plain, slots := split(have)
	near, err := slotsAround(f, pub.claims)
	if err != nil {
		return nil, nil, err
	}
	claims := slotClaims{}
	if err := claims.read(f, slices.Concat(slots, near)); err != nil {
		return nil, nil, err
	}
	dead, err := claims.rivals(x.w, me, pub.claims)
	if err != nil {
		return nil, nil, err
	}

	at, err := f.Current(plain, pub.plain)
	if err != nil {
		return nil, nil, err
	}
	fresh = claims.want(me, link, pub.claims)
	for hash := range dead {
		if err := evict(f, b, hash, claims, at); err != nil {
			return nil, nil, err
		}
	}

	f.Replace(b, me, plain, pub.plain, at)
	changing := dead
	changing[me] = true
	if flows, err = applyClaims(f, b, claims, changing); err != nil {
		return nil, nil, err
	}
	f.Relist(b, me, filter.KindPublish, have, pub.places())
	return flows, fresh, nil
}

// evict writes into b the removal of everything that an owner has published, but what applyClaims does: it takes the
// owner's claims out of claims. At has the present elements that b is about.
func evict(f filter.Tx, b *nft.Batch, hash [8]byte, claims slotClaims, at filter.State) error {
	entries, err := f.Entries(hash, filter.KindPublish)
	if err != nil {
		return err
	}
	mapped, plain, slots := split(entries)
	if err := claims.read(f, slots); err != nil {
		return err
	}
	for _, c := range claims {
		c.remove(func(d portClaim) bool { return d.owner == hash })
	}
	plain = append(plain, claims.unclaimed(mapped)...)
	left, err := f.Current(plain, nil)
	if err != nil {
		return err
	}
	maps.Copy(at, left)
	f.Replace(b, hash, plain, nil, at)
	f.Forget(b, entries)
	return nil
}

func publishedDrift(f filter.Tx, o spec.Owner, pub *published) (d resource.Drift, err error) {
	me := identity.OwnerHash(o)
	have, err := f.Entries(me, filter.KindPublish)
	if err != nil {
		return nil, err
	}
	at, err := f.Current(nil, pub.plain)
	if err != nil {
		return nil, err
	}
	var slots []slot
	for _, c := range pub.claims {
		slots = append(slots, c.slot)
	}
	claims := slotClaims{}
	if err := claims.read(f, slots); err != nil {
		return nil, err
	}
	found, err := f.Get(pub.places()[:len(pub.claims)]...)
	if err != nil {
		return nil, err
	}
	for i, want := range pub.claims {
		c, mine := claims[want.key()], want.portClaim
		if i := slices.IndexFunc(c.before, func(d portClaim) bool { return d.owner == me && d.at(mine) }); i < 0 {
			d.Add(spec.DiffersBy("element", "nft element %v is not in %s", want.mappingOf(mine), want.set().Name))
		} else if !c.before[i].same(mine) {
			d.Add(spec.DiffersBy("element", "nft element %v is %s", want.element(i, mine), c.element(i,
				c.before[i]).DataText()))
		}
		mate := func(d portClaim) bool { return d.owner != me && d.container == mine.container && c.leads(found[i], d) }
		if slices.ContainsFunc(c.before, mate) {
			continue // another interface of the same container leads, and this one stands by
		}
		d.Add(filter.ElementDrift(found[i], want.mappingOf(mine)))
	}
	for _, h := range pub.plain {
		d.Add(at.Drift(h))
	}
	return append(d, filter.RecordDrift(have, pub.places())...), nil
}

// dropPublished removes what an owner has published, and returns the flows that went to ports that are published no
// more.
func dropPublished(f filter.Tx, hash [8]byte) ([]conntrack.UDPFlow, error) {
	var b nft.Batch
	claims := slotClaims{}
	if err := evict(f, &b, hash, claims, filter.State{}); err != nil {
		return nil, err
	}
	flows, err := applyClaims(f, &b, claims, map[[8]byte]bool{hash: true})
	if err != nil {
		return nil, err
	}
	return flows, f.Commit(&b)
}
