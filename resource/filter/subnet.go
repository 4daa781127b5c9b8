package filter

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/conntrack"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// subnetSets are the sets by which the first packet of a connection is asked in whose name it comes.
//
// Replies are accepted before policies: a packet that a container sends to itself in the name of another network's
// would make what it sends that one afterwards a reply. So an address of a network with a policy begins connections
// only from the network's own link, and a link with a policy begins none in the name of another network. That is
// decided where a packet is forwarded or delivered, and of new connections only: a packet that is dropped there never
// becomes an entry of conntrack, and a reply may take any way, as those of containers with two networks do.
//
// The subnets stand in sets, one of each kind for each length of prefix: a lookup masks the address.
type subnetSets struct {
	v6            bool
	bits          int
	links         *nft.Set // subnet . the link that it is behind
	bridge        *nft.Set // subnet . the bridge that this link, the gateway of a VLAN, stands on
	policed, open *nft.Set // subnet . the same subnet, of networks that have a policy, and of others
	strict        *nft.Set // the same, of strict networks
}

// subnetSetsOf are those for prefixes like p.
func subnetSetsOf(t *nft.Table, v6 bool, bits int) subnetSets {
	a, suffix := address(v6), fmt.Sprintf("_%s_%d", ip(v6), bits)
	return subnetSets{v6: v6, bits: bits,
		links:   set(t, "subnet"+suffix, a, nft.Ifname),
		bridge:  set(t, "bridged"+suffix, a, nft.Ifname),
		policed: set(t, "policed"+suffix, a, a),
		open:    set(t, "open"+suffix, a, a),
		strict:  set(t, "strict"+suffix, a, a),
	}
}

func (s subnetSets) sets() []*nft.Set {
	return []*nft.Set{s.links, s.bridge, s.policed, s.open, s.strict}
}

// subnetSetsNamed are those that a set of that name is one of.
func subnetSetsNamed(t *nft.Table, name string) (s subnetSets, ok bool) {
	words := strings.Split(name, "_")
	if len(words) != 3 || words[1] != "ip" && words[1] != "ip6" {
		return s, false
	}
	bits, err := strconv.Atoi(words[2])
	return subnetSetsOf(t, words[1] == "ip6", bits), err == nil && bits >= 0 && bits <= 128
}

// add has p ask about new connections from subnets of that length. All lines that let packets pass come before those
// that drop, for the subnet of one network may lie in that of another.
func (s subnetSets) add(p *chainSet) {
	const src, dst = nft.Src, nft.Dst
	rule := func(comment string) *nft.Rule { return nft.NewRule(comment).Family(s.v6) }
	multicast := netip.MustParsePrefix("224.0.0.0/4")
	if s.v6 {
		multicast = netip.MustParsePrefix("ff00::/8")
	}
	c := &nft.Chain{Name: s.links.Name, Rules: []*nft.Rule{
		nft.NewRule("a VRF has subnets of its own").Iifkind("vrf").Return(),
		rule("nobody answers").Prefix(true, false, multicast).Return()}}
	if !s.v6 {
		everybody := netip.MustParsePrefix("255.255.255.255/32")
		c.Rules = append(c.Rules, rule("nobody answers").Prefix(true, false, everybody).Return())
	}
	// br_netfilter has a bridge's frames come here, too. What goes from a subnet to the same one, and not by the link that
	// the host reaches it by, is on a bridge beside that one, or in a VLAN.
	for _, same := range []*nft.Set{s.policed, s.open} {
		c.Rules = append(c.Rules, rule("on another bridge").Subnets(s.v6, s.bits, src, dst, false, same).
			SubnetBy(s.v6, s.bits, dst, dst, true, s.links).NotToLocal().Return())
	}
	c.Rules = append(c.Rules,
		rule("a network's address by another link").Subnets(s.v6, s.bits, src, src, false, s.policed).Drop(),
		rule("another network's address by a network's link").Subnets(s.v6, s.bits, src, src, false, s.open).
			In(linkSets(&p.Table).policed).Drop())
	marks := s.marks(linkSets(&p.Table).policed)
	p.Chains, p.Sets = append(p.Chains, c, marks), append(p.Sets, s.links, s.policed, s.open, s.strict)
	p.jumps = append(p.jumps,
		jumpRule{chain: "marking", rule: rule("subnets").Jump(marks.Name)},
		jumpRule{chain: "sources", rule: rule("by its own link").SubnetBy(s.v6, s.bits, src, src, false, s.links).Return(),
			first: true},
		jumpRule{chain: "sources", rule: rule("subnets").Jump(c.Name)})
}

// marks is the chain that marks what FailClosed's rules must let be: what is for a network with a policy, where the
// table knows the links of both sides, so that the chain forward can decide; and what is for a strict network, which
// that chain drops whichever link it comes by.
func (s subnetSets) marks(policed *nft.Set) *nft.Chain {
	rule := func(comment string) *nft.Rule { return nft.NewRule(comment).Family(s.v6) }
	to := func(r *nft.Rule, set *nft.Set) *nft.Rule {
		return r.Subnets(s.v6, s.bits, nft.Dst, nft.Dst, false, set).SetMark(decidedMark)
	}
	return &nft.Chain{Name: fmt.Sprintf("marking_%s_%d", ip(s.v6), s.bits), Rules: []*nft.Rule{
		to(rule("between networks").In(policed), s.policed), to(rule("into a strict network"), s.strict)}}
}

// subnets are the elements for the subnets behind a link, with the part that has the sets: those that have is of, and
// those of the container's addresses that the host reaches by the link. Of a link of its own that is the address alone.
// An address that the host reaches by another link, or by none, is nobody's here.
func (i IngressPolicy) subnets(w *kernel.World, t *nft.Table, link string, o spec.Owner, kind uint32,
	have []entry) (
	p *chainSet, want []nft.Elem, err error) {
	var list []netip.Prefix
	below := "" // the bridge that the link stands on
	for _, e := range have {
		if e.place.Set == nil {
			continue
		}
		if s, ok := subnetSetsNamed(t, e.place.Set.Name); ok {
			a, _ := nft.Fields(e.place.Set.Key, e.place.Key)[0].(netip.Addr)
			list = append(list, netip.PrefixFrom(a, s.bits))
			if e.place.Set.Name == s.bridge.Name {
				below, _ = nft.Fields(e.place.Set.Key, e.place.Key)[1].(string)
			}
		}
	}
	if list, err = i.subnetsBehind(w, link, kind, list); err != nil {
		return nil, nil, err
	}
	p = newChainSet(t)
	if len(list) == 0 {
		return p, nil, nil
	}
	if l, err := rtnl.LinkByName(w.Host, link); err == nil {
		br, err := leadsTo(w, l)
		if err != nil {
			return nil, nil, err
		}
		if below = ""; br != nil {
			below = br.Name
		}
	} else if resource.ExceptNoLink(err) != nil { // as long as the link is gone, all stays as it was
		return nil, nil, err
	}
	if below != "" {
		bridgedVLANs(p)
	}
	seen := map[string]bool{}
	for _, n := range networks(list) {
		s := subnetSetsOf(&p.Table, n.Addr().Is6(), n.Bits())
		if !seen[s.links.Name] {
			seen[s.links.Name] = true
			s.add(p)
			if below != "" {
				s.addBridged(p)
			}
		}
		elem := func(set *nft.Set, key ...any) {
			want = append(want, nft.Elem{Set: set, Key: nft.Key(key...), Comment: tagOf(o)})
		}
		elem(s.links, n.Addr(), link)
		if below != "" {
			elem(s.bridge, n.Addr(), below)
		}
		if i.Policy == PolicyOpen {
			elem(s.open, n.Addr(), n.Addr())
		} else {
			elem(s.policed, n.Addr(), n.Addr())
		}
		if i.Policy == PolicyStrict {
			elem(s.strict, n.Addr(), n.Addr())
		}
	}
	return p, want, nil
}

// subnetsBehind adds to a list the subnets of the container's addresses that the host reaches by the link.
func (i IngressPolicy) subnetsBehind(w *kernel.World, link string, kind uint32,
	list []netip.Prefix) ([]netip.Prefix, error) {
	var l *rtnl.Link
	for _, to := range i.To {
		a := to.Addr().Unmap()
		subnet := netip.PrefixFrom(a, a.BitLen())
		if kind == kindNetwork && a.Is4() == to.Addr().Is4() {
			subnet = to.Masked()
		}
		if slices.Contains(list, subnet) {
			continue
		}
		if l == nil {
			var err error
			if l, err = rtnl.LinkByName(w.Host, link); err != nil {
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

// behind reports whether the host reaches an address by a link, and by no router.
func behind(w *kernel.World, a netip.Addr, l *rtnl.Link) (bool, error) {
	r, err := rtnl.RouteTo(w.Host, a)
	// What the kernel says of the types of routes that lead nowhere.
	for _, no := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, no) {
			return false, nil
		}
	}
	return err == nil && r.Link == l.Index && !r.Via.IsValid() && r.Type == rtnl.Unicast, err
}

// subnetKind is the kind of the entries for subnets beside those for links.
func subnetKind(kind uint32) uint32 {
	if kind == kindNetwork {
		return kindSubnet
	}
	return kindOwnSubnet
}

// fresh are the subnets with a policy that stand in no set yet. Without a policy there is nothing to bypass.
func (i IngressPolicy) fresh(want []nft.Elem, at map[string]*nft.Elem) (list []netip.Prefix) {
	for _, e := range want {
		if s, ok := subnetSetsNamed(e.Set.Table, e.Set.Name); ok && e.Set.Name == s.policed.Name && at[elementKey(e)] == nil {
			a, _ := nft.Fields(e.Set.Key, e.Key)[0].(netip.Addr)
			list = append(list, netip.PrefixFrom(a, s.bits))
		}
	}
	return list
}

// forgetForged ends what may have been begun in the name of subnets while nothing asked whose such a packet was: before
// the network had a container, and after somebody flushed the rules.
func forgetForged(w *kernel.World, subnets []netip.Prefix) {
	if err := conntrack.ForgetSources(w.Host, subnets); err != nil {
		slog.Warn("conntrack keeps connections that were begun before the network had its policy, and their replies pass it until they end",
			"error", err)
	}
}
