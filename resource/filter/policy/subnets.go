package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"golang.org/x/sys/unix"
)

// addSubnets has p ask about new connections from subnets of that length. All lines that let packets pass come before
// those that drop, for the subnet of one network may lie in that of another.
func addSubnets(s filter.SubnetSets, p *filter.ChainSet) {
	const src, dst = nft.Src, nft.Dst
	policed := filter.LinkSetsOf(&p.Table).Policed
	c := &nft.Chain{Name: s.Links.Name, Rules: []*nft.Rule{
		nft.NewRule("a VRF has subnets of its own").Iifkind("vrf").Return(),
		nft.NewRule("nobody answers").TowardPrefix(filter.Multicast(s.V6)).Return()}}
	if !s.V6 {
		everybody := netip.MustParsePrefix("255.255.255.255/32")
		c.Rules = append(c.Rules, nft.NewRule("nobody answers").TowardPrefix(everybody).Return())
	}
	// br_netfilter has a bridge's frames come here, too. What goes from a subnet to the same one, and not by the link
	// that the host reaches it by, is on a bridge beside that one, or in a VLAN.
	for _, same := range []*nft.Set{s.Policed, s.Open} {
		c.Rules = append(c.Rules, s.Rule("on another bridge").Subnets(src, dst, same).
			SubnetBy(dst, dst, true, s.Links).NotToLocal().Return())
	}
	c.Rules = append(c.Rules,
		s.Rule("a network's address by another link").Subnets(src, src, s.Policed).Drop(),
		s.Rule("another network's address by a network's link").Subnets(src, src, s.Open).In(policed).Drop())
	marks := subnetMarks(s, policed)
	p.Chains, p.Sets = append(p.Chains, c, marks), append(p.Sets, s.Links, s.Policed, s.Open, s.Strict)
	addEnds(s, p)
	p.Jump("marking", false, s.Rule("subnets").Jump(marks.Name))
	p.Jump("sources", true, s.Rule("by its own link").SubnetBy(src, src, false, s.Links).Return())
	p.Jump("sources", false, s.Rule("subnets").Jump(c.Name))
}

// addEnds has p accept ICMP errors that come by the link of an end of their connection: the one that began it, or the
// one that answers, whose addresses are not translated. Within an isolated network both have to be behind the link.
func addEnds(s filter.SubnetSets, p *filter.ChainSet) {
	rule := func(comment string) *nft.Rule {
		return s.Rule(fmt.Sprintf("%s, %s/%d", comment, filter.FamilyName(s.V6), s.Links.Bits))
	}
	p.Jump("ends", false, rule("of who began").EndBehind(false, s.Links).Accept(),
		rule("of who answers").EndBehind(true, s.Links).Accept())
	p.Jump("bothends", false, rule("of both").EndBehind(false, s.Links).EndBehind(true, s.Links).Accept())
}

// subnetMarks is the chain that marks what FailClosed's rules must let be: what is for a network with a policy, where
// the table knows the links of both sides, so that the chain forward can decide; and what is for a strict network,
// which that chain drops whichever link it comes by.
func subnetMarks(s filter.SubnetSets, policed *nft.Set) *nft.Chain {
	to := func(r *nft.Rule, set *nft.Set) *nft.Rule {
		return r.Subnets(nft.Dst, nft.Dst, set).SetMark(filter.DecidedMark)
	}
	return &nft.Chain{Name: fmt.Sprintf("marking_%s_%d", filter.FamilyName(s.V6), s.Links.Bits), Rules: []*nft.Rule{
		to(s.Rule("between networks").In(policed), s.Policed), to(s.Rule("into a strict network"), s.Strict)}}
}

// subnetsOf are the subnets that entries of owners are for, and the bridge that their link stands on, if any.
func subnetsOf(t *nft.Table, have []filter.Entry) (list []netip.Prefix, below string) {
	for _, e := range filter.Places(have) {
		if s, ok := filter.SubnetSetsNamed(t, e.Set.Name); ok {
			fields := nft.Fields(e.Set.Key, e.Key)
			a, _ := fields[0].(netip.Addr)
			list = append(list, netip.PrefixFrom(a, e.Set.Bits))
			if e.Set.Name == s.Bridge.Name {
				below, _ = fields[1].(string)
			}
		}
	}
	return list, below
}

// linkSubnets are the subnets behind a link in the packet filter: the chains and sets, and elements.
type linkSubnets struct {
	chains *filter.ChainSet
	have   []filter.Entry
	want   []nft.Elem
}

// subnets are those that the entries are of, and those of the container's addresses that the host reaches by the link.
// Of a link of its own that is the address alone. An address that the host reaches by another link, or by none, is of
// no host here.
func (i Ingress) subnets(w *kernel.World, f filter.Tx, on policyLink) (l linkSubnets, err error) {
	if l.have, err = f.Entries(identity.OwnerHash(on.owner), on.subnetKind()); err != nil {
		return l, err
	}
	list, below := subnetsOf(f.Table, l.have)
	list, err = i.subnetsBehind(w, on, list)
	l.chains = filter.NewChainSet(f.Table)
	if err != nil || len(list) == 0 {
		return l, err
	}

	if link, err := rtnl.LinkByName(w.Host, on.link); err == nil {
		br, err := filter.LeadsTo(w, link)
		if err != nil {
			return l, err
		}
		if below = ""; br != nil {
			below = br.Name
		}
	} else if resource.ExceptNoLink(err) != nil { // as long as the link is gone, all stays as it was
		return l, err
	}

	if below != "" {
		bridgedVLANs(l.chains)
	}
	seen := map[string]bool{}
	for _, n := range filter.Masked(list) {
		s := filter.SubnetSetsOf(&l.chains.Table, n.Addr().Is6(), n.Bits())
		if !seen[s.Links.Name] {
			seen[s.Links.Name] = true
			addSubnets(s, l.chains)
			if below != "" {
				addBridged(s, l.chains)
			}
		}
		elem := func(set *nft.Set, key ...any) { l.want = append(l.want, filter.Owned(on.owner, set, key...)) }
		elem(s.Links, n.Addr(), on.link)
		if below != "" {
			elem(s.Bridge, n.Addr(), below)
		}
		if i.Policy == Open {
			elem(s.Open, n.Addr(), n.Addr())
		} else {
			elem(s.Policed, n.Addr(), n.Addr())
		}
		if i.Policy == Strict {
			elem(s.Strict, n.Addr(), n.Addr())
		}
	}
	return l, nil
}

// subnetsBehind adds to a list the subnets of the container's addresses that the host reaches by the link.
func (i Ingress) subnetsBehind(w *kernel.World, on policyLink, list []netip.Prefix) ([]netip.Prefix, error) {
	var l *rtnl.Link
	for _, to := range i.To {
		a := to.Addr().Unmap()
		subnet := filter.Single(a)
		if on.kind == filter.KindNetwork && a.Is4() == to.Addr().Is4() {
			subnet = to.Masked()
		}
		if slices.Contains(list, subnet) {
			continue
		}
		if l == nil {
			var err error
			if l, err = rtnl.LinkByName(w.Host, on.link); err != nil {
				return list, resource.ExceptNoLink(err)
			}
		}
		is, err := behind(w, a, l)
		if err != nil {
			return nil, err
		}
		if is {
			list = append(list, subnet)
		}
	}
	return list, nil
}

// behind reports whether the host reaches an address by a link, and by no router, or would if it had the route to the
// subnet of the link's own address, which repair restores.
func behind(w *kernel.World, a netip.Addr, l *rtnl.Link) (bool, error) {
	r, err := rtnl.RouteTo(w.Host, a)
	if err == nil && r.Link == l.Index && !r.Via.IsValid() && r.Type == rtnl.Unicast {
		return true, nil
	}
	// What the kernel says of the types of routes that lead nowhere.
	nowhere := []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL}
	if err != nil && !slices.ContainsFunc(nowhere, func(no error) bool { return errors.Is(err, no) }) {
		return false, err
	}
	addrs, err := rtnl.Addrs(w.Host, l.Index)
	for _, own := range addrs {
		if !own.Prefix.Contains(a) {
			continue
		}
		if lacks, _, err := rtnl.LacksSubnetRoute(w.Host, l.Index, own.Prefix); lacks || err != nil {
			return lacks, err
		}
	}
	return false, err
}

// freshSubnets are the subnets with a policy that stand in no set yet. Without a policy there is nothing to bypass.
func freshSubnets(want []nft.Elem, at filter.State) (list []netip.Prefix) {
	for _, e := range want {
		if s, ok := filter.SubnetSetsNamed(e.Set.Table, e.Set.Name); ok && e.Set.Name == s.Policed.Name &&
			at.At(e) == nil {
			a, _ := nft.Fields(e.Set.Key, e.Key)[0].(netip.Addr)
			list = append(list, netip.PrefixFrom(a, e.Set.Bits))
		}
	}
	return list
}

// forgetForged deletes conntrack entries of connections that may have begun with a forged source address in these
// subnets. No rule checked sources before the network had a container, or after a flush of the rules.
func forgetForged(w *kernel.World, subnets []netip.Prefix) {
	if err := conntrack.ForgetSources(w.Host, subnets); err != nil {
		slog.Warn("conntrack keeps connections that were begun before the network had its policy, and their replies "+
			"pass it until they end",
			"error", err)
	}
}
