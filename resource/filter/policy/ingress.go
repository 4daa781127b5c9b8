package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// The ingress policies of a container network.
const (
	Open       = "open"        // all hosts may send to its containers
	SameBridge = "same-bridge" // other networks that have a policy may not
	Isolated   = "isolated"    // nor may its own containers send to each other
	Strict     = "strict"      // none may, but by published ports, and its own containers to each other
)

// An Ingress decides who may send to the containers behind a link on the host. Every policy lets replies and packets
// to published ports pass.
//
// A bridge belongs to its network. Its policy changes with the configuration, and is removed with the last attachment
// that was made with a policy. The same holds for the link through which the host is in a VLAN of a bridge. Any other
// link belongs to one attachment.
type Ingress struct {
	Owner  spec.Owner
	Link   string // the bridge, or the host end of a container's own link; empty: what the container's veth leads to
	Policy string
	// the container's addresses, each with its subnet's length: they tell the link by which the host is on the bridge
	To []netip.Prefix
}

func (i Ingress) String() string {
	return resource.Line("ingress", resource.Opt("oifname", i.Link), resource.Opt("policy", i.Policy))
}

// A policyLink is the link that a policy is for, with the owner of its elements, and their kind.
type policyLink struct {
	link  string // empty: there is nothing to do
	owner spec.Owner
	kind  uint32
}

// subnetKind is the kind of the entries for subnets beside those for links.
func (l policyLink) subnetKind() uint32 {
	if l.kind == filter.KindNetwork {
		return filter.KindSubnet
	}
	return filter.KindOwnSubnet
}

// on is the link that the policy is for. Without a link there is nothing to do, which is an error where something was
// asked for.
func (i Ingress) on(w *kernel.World) (on policyLink, err error) {
	ofNetwork := func(link string) policyLink {
		return policyLink{link, NetworkOwner(i.Owner.Network, link), filter.KindNetwork}
	}
	var l *rtnl.Link
	if i.Link != "" {
		l, err = rtnl.LinkByName(w.Host, i.Link)
		if errors.Is(err, rtnl.ErrNoLink) { // the policy of a bridge goes by name, and awaits it
			if was, merr := BridgeOf(w, i.Owner); merr != nil {
				return on, merr
			} else if was == i.Link {
				return ofNetwork(was), nil
			}
		}
	} else if l, err = resource.HostEnd(w, i.Owner.IfName); err == nil && l != nil && l.Master != 0 {
		l, err = rtnl.LinkByIndex(w.Host, l.Master)
	}
	switch {
	case err != nil, l == nil && i.Policy == Open:
		return on, err
	case l == nil:
		return on, spec.Errorf(spec.CodeConfig,
			"ingressPolicy: %q: %s has no host-side interface to filter; want %q, or a network of bridge or ptp",
			i.Policy, i.Owner.IfName, Open)
	}

	if br := l; br.Kind == "bridge" {
		if l, err = filter.RoutedBy(w, br, resource.AddrsOf(i.To)); err != nil {
			return on, err
		}
		if l.Index != br.Index && !br.Data.Filtering && i.Policy != Open {
			return on, spec.Errorf(spec.CodeConfig,
				"ingressPolicy: %q: the host reaches the containers of %s by %s, and they reach the host by the "+
					"bridge itself too, past the policy: give %[2]s the addresses of %[3]s, or use VLANs, or want "+
					"%[4]q",
				i.Policy, br.Name, l.Name, Open)
		}
	}
	if l.Kind == "bridge" {
		return ofNetwork(l.Name), nil
	}
	br, err := filter.LeadsTo(w, l)
	if err != nil {
		return on, err
	}
	if br != nil {
		return ofNetwork(l.Name), nil
	}
	return policyLink{l.Name, i.Owner, filter.KindIngress}, nil
}

// want are the elements of a link, and the sets that must not have it.
func (i Ingress) want(t *nft.Table, on policyLink) (want, not []nft.Elem) {
	s := filter.LinkSetsOf(t)
	for _, member := range []struct {
		set *nft.Set
		is  bool
	}{
		{s.Known, true},
		{s.Policed, i.Policy != Open},
		{s.Within, i.Policy == SameBridge || i.Policy == Strict},
		{s.Isolated, i.Policy == Isolated},
		{s.Strict, i.Policy == Strict},
	} {
		e := filter.Owned(on.owner, member.set, on.link)
		if len(e.Set.Key) == 2 {
			e.Key = nft.Key(on.link, on.link)
		}
		if member.is {
			want = append(want, e)
		} else {
			not = append(not, e)
		}
	}
	return want, not
}

// yield keeps an element of a policy that another network on the same bridge needs, because only the network with a
// policy may lift it. So a link of several networks has the strictest of their policies. Whose is that network's
// bridge and name.
func (i Ingress) yield(want, not []nft.Elem, at filter.State, kind uint32) (_, _ []nft.Elem, whose string) {
	if kind != filter.KindNetwork {
		return want, not, ""
	}
	var lift []nft.Elem
	isolated := false
	for _, e := range not {
		if was := at.At(e); was != nil {
			net, _, text, ok := identity.ParseTag(was.Comment)
			switch within := e.Set.Name == "within"; {
			case !ok || net == identity.NetworkHash(i.Owner.Network), within && i.Policy == Isolated:
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

// transferElements transfers elements that the network no longer needs to another network that has recorded them. It
// writes the changes into b and at.
func (i Ingress) transferElements(f filter.Tx, b *nft.Batch, on policyLink, not []nft.Elem,
	at filter.State) error {
	me := identity.OwnerHash(on.owner)
	mine := func(e nft.Elem) bool {
		now := at.At(e)
		return now != nil && filter.TaggedBy(now, me)
	}
	// Only the lists of others say who is a holder.
	if on.kind != filter.KindNetwork || !slices.ContainsFunc(not, mine) {
		return nil
	}
	holders, err := policyHolders(f, me, on.link)
	for _, e := range holders {
		switch {
		case !filter.Has(not, e):
			continue
		case mine(e):
			b.Delete(e)
		case at.At(e) != nil || e.Set.Name == "within" && i.Policy == Isolated:
			continue
		}
		b.Add(e)
		at[filter.ElementKey(e)] = &e
	}
	return err
}

// ensureLink writes into b what puts a link into the sets of its policy, and out of the others.
func (i Ingress) ensureLink(f filter.Tx, b *nft.Batch, on policyLink) error {
	want, not := i.want(f.Table, on)
	at, err := f.Current(nil, slices.Concat(want, not))
	if err != nil {
		return err
	}
	if err := i.transferElements(f, b, on, not, at); err != nil {
		return err
	}
	asked, whose := want, "" // which the record keeps: another network may give way again
	if want, not, whose = i.yield(want, not, at, on.kind); whose != "" {
		slog.Warn("another network on the bridge has a policy that lets less in, which holds for both", "bridge",
			on.link, "network", whose)
	}
	me := identity.OwnerHash(on.owner)
	have, err := f.Entries(me, on.kind)
	if err != nil {
		return err
	}
	for _, e := range not {
		if at.At(e) != nil {
			b.Delete(e)
		}
	}
	for _, e := range want { // another network may be on the same bridge
		if at.At(e) == nil {
			b.Add(e)
		}
	}
	f.Relist(b, me, on.kind, have, asked)
	return nil
}

// Ensure implements plan.Resource.
func (i Ingress) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	on, err := i.on(w)
	if err != nil || on.link == "" {
		return false, err
	}
	news := false
	if on.kind == filter.KindNetwork {
		if news, err = remember(w, policyRecord, i.Owner, on.link); err != nil {
			return false, err
		}
	}
	var fresh []netip.Prefix
	err = filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		subnets, err := i.subnets(w, f, on)
		if err != nil {
			return err
		}
		if err := f.EnsureBase(subnets.chains); err != nil {
			return err
		}
		var b nft.Batch
		if err := i.ensureLink(f, &b, on); err != nil {
			return err
		}
		at, err := f.Current(subnets.have, subnets.want)
		if err != nil {
			return err
		}
		fresh = freshSubnets(subnets.want, at)
		me := identity.OwnerHash(on.owner)
		f.Replace(&b, me, subnets.have, subnets.want, at)
		f.Relist(&b, me, on.subnetKind(), subnets.have, subnets.want)
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
func (i Ingress) Verify(ctx context.Context, w *kernel.World) error {
	on, err := i.on(w)
	if err != nil || on.link == "" {
		return err
	}
	return filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		subnets, err := i.subnets(w, f, on)
		if err != nil {
			return err
		}
		return f.Compare(subnets.chains, func() (resource.Drift, error) {
			d, err := f.VerifyElements(on.owner, on.subnetKind(), subnets.want)
			if err != nil {
				return nil, err
			}
			more, err := i.linkDrift(f, on)
			return append(d, more...), err
		})
	})
}

// linkDrift compares the sets that a link is in with those of its policy.
func (i Ingress) linkDrift(f filter.Tx, on policyLink) (d resource.Drift, err error) {
	asked, not := i.want(f.Table, on)
	at, err := f.Current(nil, slices.Concat(asked, not))
	if err != nil {
		return nil, err
	}
	have, err := f.Entries(identity.OwnerHash(on.owner), on.kind)
	if err != nil {
		return nil, err
	}
	want, not, _ := i.yield(asked, not, at, on.kind)
	for _, e := range want {
		if at.At(e) == nil {
			d.Add(spec.Missing(fmt.Sprintf("nft element %v", e)))
		}
	}
	for _, e := range not {
		if at.At(e) != nil {
			d.Add(spec.TooMuch(fmt.Sprintf("nft element %v", e)))
		}
	}
	for _, err := range filter.RecordDrift(have, asked) { // which may name what was named above
		if !slices.ContainsFunc(d, func(said error) bool { return said.Error() == err.Error() }) {
			d.Add(err)
		}
	}
	return d, nil
}

// Remove implements plan.Remover. It needs only the owner. It leaves the network's policy if other attachments need
// it.
func (i Ingress) Remove(ctx context.Context, w *kernel.World) error {
	return errors.Join(IngressKind().Remove(ctx, w, plan.TagOf(i.Owner)), removeReference(ctx, w, i.Owner))
}

// networkOf returns what a picture says of a policy.
func networkOf(policy string) (n resource.Network) {
	if policy != "" && policy != Open {
		n.Marks = []string{policy}
	}
	return n
}

// Traits implements resource.Describer.
func (i Ingress) Traits() resource.Traits {
	return resource.Traits{Effect: resource.Closes, Network: networkOf(i.Policy)}
}

// Traits implements resource.Describer.
func (IsolatedPort) Traits() resource.Traits { return resource.Traits{Effect: resource.Closes} }
