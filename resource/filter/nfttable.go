package filter

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/nft"
	"golang.org/x/sys/unix"
)

// Priorities of base chains. Ours that translate come one after the standard ones, so that Services and
// other policy are asked first.
const (
	prioRaw    = -300
	prioDNAT   = -100 + 1
	prioSNAT   = 100 + 1
	prioMark   = -100 + 2 // after translation, before routing
	prioFilter = 0
	prioBridge = -300
	// ports of a bridge are filtered where bridge filters are
	prioBridgeFilter = -200
)

// inetNamed is table inet fairlead by its name, which is enough to ask whether it is there.
func inetNamed() *nft.Table {
	return &nft.Table{Family: unix.NFPROTO_INET, Name: "fairlead"}
}

// inetSets is the table without its chains, which is enough to remove elements. To write its rules takes ten times as
// long.
func inetSets() *nft.Table {
	t := inetNamed()
	t.Sets = append(t.Sets, ownersSet(t), holdersSet(t))
	for _, v6 := range []bool{false, true} {
		t.Sets = append(append(t.Sets, portsOf(t, v6, "").sets()...), itselfSet(t, v6))
	}
	l := linkSets(t)
	t.Sets = append(t.Sets, l.within, l.isolated, l.policed, l.strict, l.known)
	return t
}

// inetTable is table inet fairlead: published ports and masquerading. docs/nftables.md has the drawing.
// The chain "user" is the administrator's: it is evaluated first, made once and never touched again.
func inetTable() *nft.Table {
	t := inetSets()
	rule := nft.NewRule
	local := func() []*nft.Rule {
		return []*nft.Rule{rule("administrator").Jump("user"), rule("published ports").ToLocal().Jump("publish")}
	}
	publish := &nft.Chain{Name: "publish", Rules: []*nft.Rule{rule("under conditions").Jump("conditions")}}
	post := &nft.Chain{Name: "postrouting", Type: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: prioSNAT,
		Rules: []*nft.Rule{rule("administrator").Jump("user"),
			rule("published ports, back to where it came from").Translated().Jump("hairpin"), rule("out of a network").Jump("masquerading")}}
	for _, v6 := range []bool{false, true} {
		publish.Rules = append(publish.Rules, portsOf(t, v6, "").rules()...)
	}
	loopback := netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	l := linkSets(t)
	t.Chains = []*nft.Chain{
		{Name: "user", Open: true},
		{Name: "allowfrom", Open: true},    // a line for each list of those who may use a published port,
		{Name: "onbridge", Open: true},     // one where a VLAN of a bridge is a network's,
		{Name: "marking", Open: true},      // one, and
		{Name: "sources", Open: true},      // two for each length of networks' prefixes,
		{Name: "conditions", Open: true},   // for each set of conditions,
		{Name: "hairpin", Open: true},      // for each network with published ports,
		{Name: "masquerading", Open: true}, // and for each network that masquerades: see part
		publish,
		// route_localnet lets 127.0.0.1 be published, and would let neighbours in to what listens there.
		{Name: "guard", Type: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: prioRaw, Rules: []*nft.Rule{
			rule("127/8 from outside").NotLo().Family(false).Prefix(true, false, loopback).Drop(),
			rule("127/8 from outside").NotLo().Family(false).Prefix(false, false, loopback).Drop(),
		}},
		{Name: "prerouting", Type: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: prioDNAT, Rules: local()},
		{Name: "output", Type: "nat", Hook: unix.NF_INET_LOCAL_OUT, Priority: prioDNAT, Rules: local()},
		post,
		{Name: "decided", Type: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: prioMark, Rules: []*nft.Rule{
			rule("this table decides").Jump("marking"),
			rule("from a strict network").In(l.strict).SetMark(strictMark),
		}},
		{Name: "input", Type: "filter", Hook: unix.NF_INET_LOCAL_IN, Priority: prioFilter, Rules: []*nft.Rule{
			rule("in whose name").NotLo().New().Jump("sources"),
		}},
		{Name: "forward", Type: "filter", Hook: unix.NF_INET_FORWARD, Priority: prioFilter,
			Rules: slices.Concat([]*nft.Rule{
				rule("administrator").Jump("user"),
				// What br_netfilter has come here a second time has been asked, but see bridgedVLANs.
				rule("in whose name").New().Unconfirmed().Jump("sources"),
				rule("published ports, who may use them").Translated().Jump("allowfrom"),
				rule("begun on a bridge").Confirmed().Jump("onbridge"),
				rule("replies").Reply().Accept(),
				rule("errors about connections").Related().Accept(),
				rule("what a helper of conntrack expects").Expected().Accept(),
			}, l.policies())},
	}
	return t
}

// decidedMark is the bit of a packet's mark that says that the chain forward decides about it. What stands in for that
// chain, where a packet does not come to it or while somebody has flushed it, lets such packets be. Nobody else is
// known to use the bit: not Kubernetes (0x4000, 0x8000), the reference's plugins (0x2000), Cilium (0xf00), Calico and
// Tailscale (above 0xffff).
const decidedMark = 0x1000

// strictMark is the bit of what comes from a strict network, wherever it goes. rp_filter looks for the way back to its
// source with the mark (src_valid_mark), and must not meet the rule that prohibits the way into the network to others.
const strictMark = 0x4000000

// linkPolicySets are the sets of links that the chain forward decides by: pairs of a link with itself, which talks
// within or must not, and links.
type linkPolicySets struct{ within, isolated, policed, strict, known *nft.Set }

func linkSets(t *nft.Table) linkPolicySets {
	return linkPolicySets{
		within:   set(t, "within", nft.Ifname, nft.Ifname),
		isolated: set(t, "isolated", nft.Ifname, nft.Ifname),
		policed:  set(t, "policed", nft.Ifname),
		strict:   set(t, "strict", nft.Ifname),
		known:    set(t, "known", nft.Ifname),
	}
}

// policies are the rules that decide what is no reply.
func (l linkPolicySets) policies() []*nft.Rule {
	rule := nft.NewRule
	return []*nft.Rule{
		rule("published ports").Translated().Accept(),
		rule("within a network").Between(l.within).Accept(),
		rule("within an isolated network").Between(l.isolated).Drop(),
		rule("between networks").In(l.policed).Out(l.policed).Drop(),
		rule("into a strict network").Out(l.strict).Drop(),
		rule("from a strict network to another").In(l.strict).Out(l.known).Drop(),
	}
}

// isolatedPorts are the ports of bridges that no other of them may talk to.
func isolatedPorts(t *nft.Table) *nft.Set {
	return set(t, "isolated_ports", nft.Ifname)
}

// bridgeNamed and bridgeSets are of table bridge fairlead what inetNamed and inetSets are of the other.
func bridgeNamed() *nft.Table {
	return &nft.Table{Family: unix.NFPROTO_BRIDGE, Name: "fairlead"}
}

func bridgeSets() *nft.Table {
	t := bridgeNamed()
	links, pairs := spoofSets(t)
	t.Sets = []*nft.Set{ownersSet(t), links, pairs, isolatedPorts(t)}
	return t
}

// bridgeTable is table bridge fairlead: the spoof check, and ports that are isolated from each other.
func bridgeTable() *nft.Table {
	t := bridgeSets()
	links, pairs := spoofSets(t)
	ports := isolatedPorts(t)
	t.Chains = []*nft.Chain{
		{Name: "user", Open: true},
		{Name: "prerouting", Type: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: prioBridge, Rules: []*nft.Rule{
			nft.NewRule("administrator").Jump("user"),
			nft.NewRule("source address of somebody else").FromGuarded(links, pairs).Drop(),
		}},
		{Name: "forward", Type: "filter", Hook: unix.NF_INET_FORWARD, Priority: prioBridgeFilter, Rules: []*nft.Rule{
			nft.NewRule("administrator").Jump("user"),
			// Where br_netfilter passes frames through the rules of IP, the chain forward there decides: a published
			// port may lead from one port of the bridge to another.
			nft.NewRule("within an isolated network").In(ports).Out(ports).Mark(false, 0, decidedMark).Drop(),
		}},
	}
	return t
}

// ip is "ip" or "ip6", as nft(8) calls the families, and address the type of an address.
func ip(v6 bool) string {
	if v6 {
		return "ip6"
	}
	return "ip"
}

func address(v6 bool) nft.Type {
	if v6 {
		return nft.Addr6
	}
	return nft.Addr
}

func set(t *nft.Table, name string, key ...nft.Type) *nft.Set {
	return &nft.Set{Table: t, Name: name, Key: key}
}

// ownersSet is where an owner's elements are found: keyed by the owner's hash in two halves and a number
// whose upper half is the kind of resource. The comment names set and key, and has the tag.
func ownersSet(t *nft.Table) *nft.Set {
	return set(t, "owners", nft.Mark, nft.Mark, nft.Mark)
}

// holdersSet is who has an element that another owner has too, because the address that it is for is that of both:
// keyed by a hash of the element's place in two halves and a number. The comment has the tag.
func holdersSet(t *nft.Table) *nft.Set {
	return set(t, "holders", nft.Mark, nft.Mark, nft.Mark)
}

// sharedSet is the set of those who share a chain, and has the chain's name: addresses that masquerade, or
// container addresses and ports that something published leads to.
func sharedSet(t *nft.Table, chain string) *nft.Set {
	a := address(strings.Contains(chain, "_ip6_"))
	if strings.HasPrefix(chain, "masquerade_") {
		return set(t, chain, a)
	}
	s := set(t, chain, a, nft.Proto, nft.Service)
	s.Interval = strings.Contains(chain, "_range_")
	return s
}

// itselfSet has each container that lets only some in, twice: it may use its own ports.
func itselfSet(t *nft.Table, v6 bool) *nft.Set {
	return set(t, "itself_"+ip(v6), address(v6), address(v6))
}

func spoofSets(t *nft.Table) (links, pairs *nft.Set) {
	return set(t, "spoofcheck", nft.Ifname), set(t, "allowed", nft.Ifname, nft.Ether)
}

// portMaps are the maps of published ports of one family and, where there are conditions, of one set of
// conditions, which its name is a hash of.
type portMaps struct {
	v6    bool
	where string
	exact *nft.Set // host address . protocol . port, asked first
	any   *nft.Set // protocol . port
	// The same of ranges whose ports lead to the same ports of the container: the kernel cannot count along
	// with a range that is shifted. They are maps of their own, for an interval costs more the more there are.
	exactRange, anyRange *nft.Set
	// claims has everybody who published a port, and ranges who published a range, see slot: at any address and at one,
	// the one that the maps lead to and those of the same container that stand by. So a conflict is found, and a
	// mapping taken over, without looking at other ports.
	claims, ranges *nft.Set
}

func portsOf(t *nft.Table, v6 bool, where string) portMaps {
	suffix := ""
	if where != "" {
		suffix = "_where_" + where
	}
	a, name := address(v6), "publish_"+ip(v6)
	p := portMaps{v6: v6, where: where,
		exact:      set(t, name+suffix, a, nft.Proto, nft.Service),
		any:        set(t, name+"_any"+suffix, nft.Proto, nft.Service),
		exactRange: set(t, name+"_range"+suffix, a, nft.Proto, nft.Service),
		anyRange:   set(t, name+"_any_range"+suffix, nft.Proto, nft.Service),
		claims:     set(t, "claims_"+ip(v6)+suffix, nft.Proto, nft.Service, nft.Mark),
	}
	p.exact.Data = []nft.Type{a, nft.Service}
	p.any.Data = p.exact.Data
	p.exactRange.Data, p.exactRange.Interval = []nft.Type{a}, true
	p.anyRange.Data, p.anyRange.Interval = p.exactRange.Data, true
	// host address, container address, ports, container's hash, index of the host end
	p.claims.Data = []nft.Type{a, a, nft.Mark, nft.Mark, nft.Mark}
	list := *p.claims
	list.Name, list.Later = "ranges_"+ip(v6)+suffix, true
	p.ranges = &list
	return p
}

func (p portMaps) sets() []*nft.Set {
	return []*nft.Set{p.exact, p.exactRange, p.any, p.anyRange, p.claims, p.ranges}
}

func (p portMaps) rules() []*nft.Rule {
	return []*nft.Rule{
		nft.NewRule("at one address").DNAT(p.v6, false, p.exact),
		nft.NewRule("ranges at one address").DNAT(p.v6, false, p.exactRange),
		nft.NewRule("at any address").DNAT(p.v6, true, p.any),
		nft.NewRule("ranges at any address").DNAT(p.v6, true, p.anyRange),
	}
}

// chain is where the conditions jump to.
func (p portMaps) chain() string { return "publish_" + ip(p.v6) + "_where_" + p.where }

// setNamed is the set that an entry of owners names.
func setNamed(t *nft.Table, name string) *nft.Set {
	if i := slices.IndexFunc(t.Sets, func(s *nft.Set) bool { return s.Name == name }); i >= 0 {
		return t.Sets[i]
	}
	if strings.HasPrefix(name, "masquerade_") || strings.HasPrefix(name, "hairpin_") || strings.HasPrefix(name, "allow_") {
		return sharedSet(t, name)
	}
	var sets []*nft.Set
	if p, ok := portsNamed(t, name); ok {
		sets = p.sets()
	} else if s, ok := subnetSetsNamed(t, name); ok {
		sets = s.sets()
	}
	if i := slices.IndexFunc(sets, func(s *nft.Set) bool { return s.Name == name }); i >= 0 {
		return sets[i]
	}
	return nil
}

// portsNamed are the maps that one of those that lead somewhere belongs to.
func portsNamed(t *nft.Table, name string) (portMaps, bool) {
	base, where, _ := strings.Cut(name, "_where_")
	base, ok := strings.CutPrefix(strings.TrimSuffix(strings.TrimSuffix(base, "_range"), "_any"), "publish_")
	return portsOf(t, base == "ip6", where), ok
}

// The kinds of resource that owners tells apart, in the upper half of the number.
const (
	kindMasquerade = (1 + iota) << 16
	kindPublish
	kindSpoofCheck
	kindIngress
	kindIsolatedPort
	kindNetwork   // no attachment's: the policy of a bridge
	kindSubnet    // no attachment's: the subnets behind a bridge
	kindOwnSubnet // the addresses behind a link of the attachment's own
)

// ownerKey is the key of an owner's nth entry of a kind.
func ownerKey(hash [8]byte, n uint32) []byte {
	return nft.Key(binary.BigEndian.Uint32(hash[:4]), binary.BigEndian.Uint32(hash[4:]), n)
}
