package filter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// ReleaseNetwork removes what a network itself has for its bridges, policies and routing rules, when its attachments
// were handed over. Keep are links that attachments of ours are still behind.
func ReleaseNetwork(ctx context.Context, w *kernel.World, network string, keep func(link string) bool) error {
	stays := func(link string) (bool, error) { return keep(link), nil }
	// The rules of the reference stand by now.
	return sweepNetwork(ctx, w, network, stays)
}

// The ingress policies of a container network.
const (
	PolicyOpen       = "open"        // everybody may send to its containers
	PolicySameBridge = "same-bridge" // other networks that have a policy may not
	PolicyIsolated   = "isolated"    // nor may its own containers send to each other
	PolicyStrict     = "strict"      // nobody may, but by published ports, and its own containers to each other
)

// An IngressPolicy keeps the containers behind a link on the host apart from others. Replies and published ports pass
// whatever the policy.
//
// A bridge is its network's: the policy is put on it, and changed with the configuration, and goes with the last
// attachment that was made with one. So is the link by which the host is on a bridge, where that is not the bridge
// itself. Any other link is its attachment's alone.
type IngressPolicy struct {
	Owner  spec.Owner
	Link   string // the bridge, or the host end of a container's own link; empty: what the container's veth leads to
	Policy string
	To     []netip.Prefix // the container's addresses, each with its subnet's length: they tell the link by which the host is on the bridge
}

func (i IngressPolicy) String() string {
	return resource.Line("ingress", resource.Opt("oifname", i.Link), resource.Opt("policy", i.Policy))
}

// NetworkOwner is who a bridge's policy belongs to.
func NetworkOwner(network, link string) spec.Owner {
	return spec.Owner{Network: network, IfName: link}
}

// on is the link that the policy is for, with whom it belongs to. Without a link there is nothing to do, which is
// an error where something was asked for.
func (i IngressPolicy) on(w *kernel.World) (link string, o spec.Owner, kind uint32, err error) {
	var l *rtnl.Link
	if i.Link != "" {
		l, err = rtnl.LinkByName(w.Host, i.Link)
		if errors.Is(err, rtnl.ErrNoLink) { // the policy of a bridge goes by name, and awaits it
			if was, merr := PolicyBridge(w, i.Owner); merr != nil {
				return "", o, 0, merr
			} else if was == i.Link {
				return was, NetworkOwner(i.Owner.Network, was), kindNetwork, nil
			}
		}
		if err != nil {
			return "", o, 0, err
		}
	} else if l, err = resource.HostEnd(w, i.Owner.IfName); err != nil {
		return "", o, 0, err
	} else if l != nil && l.Master != 0 {
		if l, err = rtnl.LinkByIndex(w.Host, l.Master); err != nil {
			return "", o, 0, err
		}
	}
	if br := l; l != nil && l.Kind == "bridge" {
		if l, err = routedBy(w, br, addrsIn(i.To)); err != nil {
			return "", o, 0, err
		}
		if l.Index != br.Index && !br.Data.Filtering && i.Policy != PolicyOpen {
			return "", o, 0, spec.Errorf(spec.CodeConfig,
				"ingressPolicy: %q: the host reaches the containers of %s by %s, and they reach the host by the bridge itself too, past the policy: give %[2]s the addresses of %[3]s, or use VLANs, or want %[4]q",
				i.Policy, br.Name, l.Name, PolicyOpen)
		}
	}
	switch {
	case l == nil && i.Policy == PolicyOpen:
		return "", o, 0, nil
	case l == nil:
		return "", o, 0, spec.Errorf(spec.CodeConfig,
			"ingressPolicy: %q: %s has no end on this host whose traffic could be told; want %q, or a network of bridge or ptp",
			i.Policy, i.Owner.IfName, PolicyOpen)
	case l.Kind == "bridge":
		return l.Name, NetworkOwner(i.Owner.Network, l.Name), kindNetwork, nil
	}
	if br, err := leadsTo(w, l); err != nil {
		return "", o, 0, err
	} else if br != nil {
		return l.Name, NetworkOwner(i.Owner.Network, l.Name), kindNetwork, nil
	}
	return l.Name, i.Owner, kindIngress, nil
}

// want are the elements of a link, and the sets that must not have it.
func (i IngressPolicy) want(t *nft.Table, link string, o spec.Owner) (want, not []nft.Elem) {
	s := linkSets(t)
	in := map[*nft.Set]bool{
		s.known:    true,
		s.policed:  i.Policy != PolicyOpen,
		s.within:   i.Policy == PolicySameBridge || i.Policy == PolicyStrict,
		s.isolated: i.Policy == PolicyIsolated,
		s.strict:   i.Policy == PolicyStrict,
	}
	for _, set := range []*nft.Set{s.known, s.policed, s.within, s.isolated, s.strict} {
		e := nft.Elem{Set: set, Key: nft.Key(link), Comment: tagOf(o)}
		if len(set.Key) == 2 {
			e.Key = nft.Key(link, link)
		}
		if in[set] {
			want = append(want, e)
		} else {
			not = append(not, e)
		}
	}
	return want, not
}

// yield leaves what another network keeps out of a bridge that both are on: lifting a policy is for who has it. So a
// link of several networks has the strictest of their policies. Whose is such a network's bridge and name.
func (i IngressPolicy) yield(want, not []nft.Elem, at map[string]*nft.Elem,
	kind uint32) (_, _ []nft.Elem, whose string) {
	if kind != kindNetwork {
		return want, not, ""
	}
	var lift []nft.Elem
	isolated := false
	for _, e := range not {
		if was := at[elementKey(e)]; was != nil {
			net, _, text, ok := identity.ParseTag(was.Comment)
			switch within := e.Set.Name == "within"; {
			case !ok || net == identity.NetworkHash(i.Owner.Network), within && i.Policy == PolicyIsolated:
			case within:
				continue
			default:
				isolated = isolated || e.Set.Name == "isolated"
				whose, _, _ = strings.Cut(text, "/")
				continue
			}
		}
		lift = append(lift, e)
	}
	if !isolated {
		return want, lift, whose
	}
	var rest []nft.Elem
	for _, e := range want { // it would let in what the other keeps out
		if e.Set.Name == "within" {
			lift = append(lift, e)
		} else {
			rest = append(rest, e)
		}
	}
	return rest, lift, whose
}

// transferElements writes into b, and at, that elements which the network does not want any more become another one's
// who has recorded them.
func (i IngressPolicy) transferElements(f filter, b *nft.Batch, link string, o spec.Owner, kind uint32,
	not []nft.Elem, at map[string]*nft.Elem) error {
	me := identity.OwnerHash(o)
	mine := func(e nft.Elem) bool { return at[elementKey(e)] != nil && taggedBy(at[elementKey(e)], me) }
	if kind != kindNetwork || !slices.ContainsFunc(not, mine) { // only the lists of others say who is a holder
		return nil
	}
	holders, err := f.policyHolders(me, link)
	for _, e := range holders {
		switch {
		case !slices.ContainsFunc(not, func(n nft.Elem) bool { return sameKey(n, e) }):
			continue
		case mine(e):
			b.Delete(e)
		case at[elementKey(e)] != nil || e.Set.Name == "within" && i.Policy == PolicyIsolated:
			continue
		}
		b.Add(e)
		at[elementKey(e)] = &e
	}
	return err
}

// Ensure implements plan.Resource.
func (i IngressPolicy) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	link, o, kind, err := i.on(w)
	if err != nil || link == "" {
		return false, err
	}
	news := false
	if kind == kindNetwork {
		if news, err = addPolicyReference(w, i.Owner, link); err != nil {
			return false, err
		}
	}
	var fresh []netip.Prefix
	err = withFilter(ctx, w, inetTable(), func(f filter) error {
		hadSubnets, err := f.entries(identity.OwnerHash(o), subnetKind(kind))
		if err != nil {
			return err
		}
		part, subnets, err := i.subnets(w, f.t, link, o, kind, hadSubnets)
		if err != nil {
			return err
		}
		if err := f.ensureBase(part); err != nil {
			return err
		}
		want, not := i.want(f.t, link, o)
		at, err := f.current(nil, slices.Concat(want, not))
		if err != nil {
			return err
		}
		var b nft.Batch
		if err := i.transferElements(f, &b, link, o, kind, not, at); err != nil {
			return err
		}
		asked, whose := want, "" // which the record keeps: another network may give way again
		if want, not, whose = i.yield(want, not, at, kind); whose != "" {
			slog.Warn("another network on the bridge has a policy that lets less in, which holds for both", "bridge", link,
				"network", whose)
		}
		have, err := f.entries(identity.OwnerHash(o), kind)
		if err != nil {
			return err
		}
		for _, e := range not {
			if at[elementKey(e)] != nil {
				b.Delete(e)
			}
		}
		for _, e := range want { // another network may be on the same bridge
			if at[elementKey(e)] == nil {
				b.Add(e)
			}
		}
		f.record(&b, o, kind, have, asked)
		if at, err = f.current(hadSubnets, subnets); err != nil {
			return err
		}
		fresh = i.fresh(subnets, at)
		f.replace(&b, identity.OwnerHash(o), hadSubnets, subnets, at)
		f.record(&b, o, subnetKind(kind), hadSubnets, subnets)
		changed = !b.Empty()
		return f.Commit(&b)
	})
	if err == nil {
		forgetForged(w, fresh)
	}
	if err != nil && news {
		err = errors.Join(err, w.Store.Delete(policyRecord, i.Owner))
	}
	return (changed || news) && err == nil, err
}

// Verify implements plan.Resource.
func (i IngressPolicy) Verify(ctx context.Context, w *kernel.World) error {
	link, o, kind, err := i.on(w)
	if err != nil || link == "" {
		return err
	}
	return withFilter(ctx, w, inetTable(), func(f filter) error {
		had, err := f.entries(identity.OwnerHash(o), subnetKind(kind))
		if err != nil {
			return err
		}
		part, subnets, err := i.subnets(w, f.t, link, o, kind, had)
		if err != nil {
			return err
		}
		d, err := f.standing(part)
		if err != nil || d.All() {
			return errors.Join(err, d.Err())
		}
		more, err := f.verifyElements(o, subnetKind(kind), subnets)
		if err != nil {
			return err
		}
		d = append(d, more...)
		want, not := i.want(f.t, link, o)
		at, err := f.current(nil, slices.Concat(want, not))
		if err != nil {
			return err
		}
		asked := want
		want, not, _ = i.yield(want, not, at, kind)
		have, err := f.entries(identity.OwnerHash(o), kind)
		if err != nil {
			return err
		}
		for _, e := range want {
			if at[elementKey(e)] == nil {
				d.Add(fmt.Errorf("nft element %v is missing", e))
			}
		}
		for _, e := range not {
			if at[elementKey(e)] != nil {
				d.Add(fmt.Errorf("nft element %v is too much", e))
			}
		}
		for _, err := range recordDrift(have, asked) { // which may name what was named above
			if !slices.ContainsFunc(d, func(said error) bool { return said.Error() == err.Error() }) {
				d.Add(err)
			}
		}
		return d.Err()
	})
}

// Remove implements plan.Remover. It needs only the owner, and leaves what is the network's to others of it.
func (i IngressPolicy) Remove(ctx context.Context, w *kernel.World) error {
	return errors.Join(IngressKind().Remove(ctx, w, plan.TagOf(i.Owner)), PolicyReference{i.Owner}.Remove(ctx, w))
}

// An IsolatedPort is a container's host end on a bridge that no other of them may send to or hear from. The bridge
// itself drops the frames: they need not come to the rules of IP.
type IsolatedPort struct {
	Owner spec.Owner
	Link  string // the host end; empty: that of the container's veth

	// UnlessRules leaves it to the rules of IP where br_netfilter passes the bridge's frames through those. These rules
	// name the bridge only where the host is on it by the bridge itself: see Ingress.
	UnlessRules bool
	To          []netip.Addr
}

func (p IsolatedPort) String() string {
	return resource.Line("isolated port", resource.Opt("iifname", p.Link), "drop",
		resource.Flag("unless by br_netfilter", p.UnlessRules))
}

// port is the link that frames of the container come in by; nil where there is none, or it is left to the rules of IP.
func (p IsolatedPort) port(w *kernel.World) (l *rtnl.Link, err error) {
	if p.Link == "" {
		l, err = resource.HostEnd(w, p.Owner.IfName)
	} else {
		l, err = rtnl.LinkByName(w.Host, p.Link)
	}
	if l == nil || err != nil || !p.UnlessRules {
		return l, err
	}
	if v, err := procsys.Get(w.Host, "net/bridge/bridge-nf-call-iptables"); err != nil || v == "0" {
		return l, nil
	}
	if l.Master == 0 {
		return nil, nil
	}
	br, err := rtnl.LinkByIndex(w.Host, l.Master)
	if err != nil {
		return nil, err
	}
	if at, err := routedBy(w, br, p.To); err != nil || at.Index == br.Index {
		return nil, err
	}
	return l, nil
}

func (p IsolatedPort) want(t *nft.Table, l *rtnl.Link) []nft.Elem {
	if l == nil {
		return nil
	}
	return []nft.Elem{{Set: isolatedPorts(t), Key: nft.Key(l.Name), Comment: tagOf(p.Owner)}}
}

// Ensure implements plan.Resource.
func (p IsolatedPort) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	l, err := p.port(w)
	if err != nil || l == nil && p.UnlessRules {
		return false, err
	}
	err = withFilter(ctx, w, bridgeTable(), func(f filter) error {
		if err := f.ensureBase(newChainSet(f.t)); err != nil {
			return err
		}
		changed, err = f.applyElements(p.Owner, kindIsolatedPort, p.want(f.t, l))
		return err
	})
	return changed && err == nil, err
}

// Verify implements plan.Resource.
func (p IsolatedPort) Verify(ctx context.Context, w *kernel.World) error {
	l, err := p.port(w)
	if err != nil || l == nil && p.UnlessRules {
		return err
	}
	return withFilter(ctx, w, bridgeTable(), func(f filter) error {
		return f.verify(newChainSet(f.t), p.Owner, kindIsolatedPort, p.want(f.t, l))
	})
}

// Remove implements plan.Remover. It needs only the owner.
func (p IsolatedPort) Remove(ctx context.Context, w *kernel.World) error {
	return IsolatedPortKind().Remove(ctx, w, plan.TagOf(p.Owner))
}

// SweepNetwork removes what a network itself has in the packet filter for bridges that are gone. Where no
// attachment uses it any more, a bridge without a port is as good as gone: somebody else's may be on it too.
func SweepNetwork(ctx context.Context, w *kernel.World, network string, used bool) error {
	return sweepNetwork(ctx, w, network, func(link string) (bool, error) { return stands(w, link, used) })
}

// sweepNetwork removes the policies that a network itself has for links that are not to keep them.
func sweepNetwork(ctx context.Context, w *kernel.World, network string, keeps func(link string) (bool, error)) error {
	// What prohibits the way goes before the marks that lift it.
	if err := sweepProhibitions(w, network, keeps); err != nil {
		return err
	}
	err := withFilter(ctx, w, inetTable(), func(f filter) error {
		records, err := f.List(ownersSet(f.t))
		if err != nil {
			return err
		}
		var errs []error
		done := map[[8]byte]bool{}
		for _, r := range records {
			e, tag := f.parseEntry(r)
			net, hash, _, ok := identity.ParseTag(tag)
			if !ok || net != identity.NetworkHash(network) || binary.NativeEndian.Uint32(r.Key[8:])&^0xffff != kindNetwork ||
				done[hash] {
				continue
			}
			done[hash] = true
			stays, err := keeps(linkOf(e.place))
			if err == nil && !stays {
				err = f.attempt(ctx, func(f filter) error {
					_, err := f.drop(hash, kindNetwork)
					_, also := f.drop(hash, kindSubnet)
					return errors.Join(err, also)
				})
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	if unavailable(err) {
		return nil
	}
	return err
}

// linkOf is the link that an element of a policy is about.
func linkOf(e nft.Elem) string {
	if e.Set != nil {
		if f := nft.Fields(e.Set.Key, e.Key); len(f) > 0 {
			name, _ := f[0].(string)
			return name
		}
	}
	return ""
}

// stands reports whether a bridge's policy is still needed.
func stands(w *kernel.World, link string, used bool) (bool, error) {
	l, err := rtnl.LinkByName(w.Host, link)
	if err != nil || used {
		return err == nil, resource.ExceptNoLink(err)
	}
	if br, err := leadsTo(w, l); err != nil {
		return false, err
	} else if br != nil {
		l = br
	}
	links, err := rtnl.Links(w.Host)
	return slices.ContainsFunc(links, func(p *rtnl.Link) bool { return p.Master == l.Index && !hostsOwn(links, p) }), err
}

// Traits implements resource.Describer.
func (IngressPolicy) Traits() resource.Traits { return resource.Traits{Effect: resource.Closes} }

// Traits implements resource.Describer.
func (IsolatedPort) Traits() resource.Traits { return resource.Traits{Effect: resource.Closes} }
