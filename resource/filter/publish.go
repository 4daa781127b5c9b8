package filter

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/kernel/sockdiag"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Publish makes ports of the host lead to the container.
//
// Only packets for the host itself are translated, coming in or made here. Two containers cannot have one
// port at overlapping addresses, as with bind(2); one container can have it on several networks, and then
// the first leads until it goes. Whoever published a port from behind a veth pair that is gone by now has
// lost it.
type Publish struct {
	Owner    spec.Owner
	Ports    []PortMapping
	To4, To6 netip.Prefix // the container's addresses, each with its subnet's length; invalid: none
	SNAT     bool         // masquerade what would not come back by itself: from the container, its subnet, 127.0.0.1
	MasqAll  bool         // masquerade everything that goes to these ports

	// Conditions4 and Conditions6 are what else a packet has to fulfil, in the words of nft(8) or iptables(8).
	Conditions4, Conditions6 []string
}

func (p Publish) String() string {
	ports := make([]string, len(p.Ports))
	for i, m := range p.Ports {
		ports[i] = m.String()
	}
	return resource.Line("publish", strings.Join(ports, ", "), resource.Opt("dnat ip to", p.To4),
		resource.Opt("dnat ip6 to", p.To6),
		resource.Flag("snat", p.SNAT), resource.Flag("masqall", p.MasqAll),
		resource.Opt("where ip", strings.Join(p.Conditions4, " ")), resource.Opt("where ip6",
			strings.Join(p.Conditions6, " ")))
}

// Traits implements resource.Describer. What is published to some only lets these in with the transaction that publishes
// it.
func (p Publish) Traits() resource.Traits {
	return resource.Traits{Effect: resource.Opens, Clears: len(p.Ports) == 0}
}

// published is what a Publish comes to in the table.
type published struct {
	chainSet *chainSet
	claims   []wanted
	plain    []nft.Elem // what is masqueraded on its way to the container
	back     bool       // there are such
	local    bool       // 127.0.0.1 is to work

	end    *rtnl.Link // see hostEnd
	ended  bool
	asked  bool // for the next two, see ownLink
	own    *rtnl.Link
	astray error
}

// places are what owners has to name.
func (p *published) places() (all []nft.Elem) {
	for _, c := range p.claims {
		all = append(all, c.mappingOf(c.portClaim))
	}
	return append(all, p.plain...)
}

// Family is where the ports lead in a family, if valid, and its conditions.
func (p Publish) Family(v6 bool) (to netip.Prefix, conditions []string) {
	if v6 {
		return p.To6, p.Conditions6
	}
	return p.To4, p.Conditions4
}

func (p Publish) want(t *nft.Table) (*published, error) {
	pub := &published{chainSet: newChainSet(t)}
	for _, v6 := range []bool{false, true} {
		if err := p.wantFamily(t, v6, pub); err != nil {
			return nil, err
		}
	}
	return pub, nil
}

func (p Publish) wantFamily(t *nft.Table, v6 bool, pub *published) error {
	to, conditions := p.Family(v6)
	if !to.IsValid() {
		return nil
	}
	alternatives, where, err := parseConditions(conditions, v6)
	if err != nil {
		return err
	}
	ports := portsOf(t, v6, where)
	if where != "" {
		pub.chainSet.Sets = append(pub.chainSet.Sets, ports.sets()...)
		pub.chainSet.Chains = append(pub.chainSet.Chains, &nft.Chain{Name: ports.chain(), Rules: ports.rules()})
		for _, r := range alternatives {
			pub.chainSet.jumps = append(pub.chainSet.jumps, jumpRule{chain: "conditions", rule: r.Jump(ports.chain())})
		}
	}
	list, err := spans(p.Ports, v6)
	if err != nil {
		return err
	}
	var hairpin []span
	for _, s := range list {
		c := portClaim{owner: identity.OwnerHash(p.Owner), comment: tagOf(p.Owner), host: s.host, to: to.Addr(),
			first: s.first, last: s.last, toPort: s.to, container: identity.ContainerHash(p.Owner.ContainerID)}
		pub.claims = append(pub.claims, wanted{ports.slotOf(s.proto, s.first, s.last), c})
		s.first, s.last = s.ends()
		hairpin = append(hairpin, s)
	}
	if (p.SNAT || p.MasqAll) && len(hairpin) > 0 {
		pub.back, pub.local = true, pub.local || !v6
		share := func(name string) *nft.Set {
			return pub.chainSet.share("hairpin", name, func(s *nft.Set) *nft.Rule {
				return nft.NewRule("a network").To(v6, s)
			}, p.hairpinRules(to, v6))
		}
		pub.plain = append(pub.plain, portElements("hairpin_"+ip(v6), share, to.Addr(), tagOf(p.Owner), hairpin)...)
	}
	pub.plain = append(pub.plain, p.allowed(t, pub.chainSet, to.Addr(), list)...)
	return nil
}

// hairpinRules masquerade what the container would answer to directly, past the host that translated it.
func (p Publish) hairpinRules(to netip.Prefix, v6 bool) []*nft.Rule {
	if p.MasqAll {
		return []*nft.Rule{nft.NewRule("from anywhere").Masquerade()}
	}
	rules := []*nft.Rule{nft.NewRule("from its own network").Family(v6).Prefix(false, false,
		to.Masked()).Masquerade()}
	if !v6 {
		loopback := netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
		rules = append(rules, nft.NewRule("from this host").Family(v6).Prefix(false, false, loopback).Masquerade())
	}
	return rules
}

// Ensure implements plan.Resource.
func (p Publish) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if len(p.Ports) == 0 {
		return false, nil
	}
	var flows []conntrack.UDPFlow
	var fresh []wanted
	var pub *published
	if err := p.heldByOthers(ctx, w); err != nil { // with its own lock, which is never waited for under that of nft
		return false, err
	}
	err = withFilter(ctx, w, inetTable(), func(f filter) (err error) {
		if pub, err = p.want(f.t); err != nil {
			return err
		}
		var b nft.Batch // before anything is made: a conflict leaves nothing
		if flows, fresh, err = f.publish(w, &b, p.Owner, pub); err != nil {
			return err
		}
		// with what keeps neighbours out of 127/8, before they could come in
		if err := f.ensureBase(pub.chainSet); err != nil {
			return err
		}
		wrote, err := p.openPaths(w, pub)
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
		if c.proto == kernel.SCTP || knownOf(ctx) != nil { // in a repair it was said when it was published first

			continue
		}
		if port, ok := sockdiag.Listens(w.Host, c.proto, c.host, c.first, c.last); ok {
			slog.Warn("a process listens on a port that is published now, and hears only what is not for the host's addresses",
				"port", port, "protocol", kernel.ProtoName(c.proto), "attachment", p.Owner.String())
		}
	}
	return changed, p.ensured(ctx, w, pub)
}

// Verify implements plan.Resource.
func (p Publish) Verify(ctx context.Context, w *kernel.World) error {
	if len(p.Ports) == 0 {
		return nil
	}
	return withFilter(ctx, w, inetTable(), func(f filter) error {
		pub, err := p.want(f.t)
		if err != nil {
			return err
		}
		d, err := f.standing(pub.chainSet)
		if err != nil || d.All() {
			return errors.Join(err, d.Err())
		}
		more, err := f.publishedDrift(p.Owner, pub)
		if err != nil {
			return err
		}
		d = append(d, more...)
		for _, path := range p.paths(w, pub) {
			d.Add(path.err)
		}
		d.Add(p.strayed(w, pub))
		return d.Err()
	})
}

// Remove implements plan.Remover. It needs only the owner.
func (p Publish) Remove(ctx context.Context, w *kernel.World) error {
	return PublishKind().Remove(ctx, w, plan.TagOf(p.Owner))
}
