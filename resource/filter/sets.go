package filter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel/identity"
)

// LinkSets are the sets of links by which the chain forward decides. Some contain pairs of a link with itself, for
// traffic between containers behind one link; others contain single links.
type LinkSets struct{ Within, Isolated, Policed, Strict, Known *nft.Set }

// LinkSetsOf returns the LinkSets of a table.
func LinkSetsOf(t *nft.Table) LinkSets {
	return LinkSets{
		Within:   set(t, "within", nft.Ifname, nft.Ifname),
		Isolated: set(t, "isolated", nft.Ifname, nft.Ifname),
		Policed:  set(t, "policed", nft.Ifname),
		Strict:   set(t, "strict", nft.Ifname),
		Known:    set(t, "known", nft.Ifname),
	}
}

// Policies returns the rules that decide about packets that are no replies.
func (l LinkSets) Policies() []*nft.Rule {
	rule := nft.NewRule
	return []*nft.Rule{
		rule("published ports").Translated().Accept(),
		rule("within a network").Between(l.Within).Accept(),
		rule("within an isolated network").Between(l.Isolated).Drop(),
		rule("between networks").In(l.Policed).Out(l.Policed).Drop(),
		rule("into a strict network").Out(l.Strict).Drop(),
		rule("from a strict network to another").In(l.Strict).Out(l.Known).Drop(),
	}
}

// errors returns the rules that decide about ICMP errors. An error may pass where its sender may send new connections,
// or where it comes by the link of an end of its connection. Within an isolated network there are only connections
// that are published, so both ends are behind the link. A link that has no policy, such as that to the LAN, may have
// routers.
func (l LinkSets) errors() []*nft.Rule {
	rule := nft.NewRule
	return []*nft.Rule{
		rule("within an isolated network").Between(l.Isolated).Jump("bothends"),
		rule("within an isolated network, about others").Between(l.Isolated).Drop(),
		rule("by the link of an end").Jump("ends"),
		rule("within a network").Between(l.Within).Accept(),
		rule("between networks").In(l.Policed).Out(l.Policed).Drop(),
		rule("into a strict network").In(l.Known).Out(l.Strict).Drop(),
		rule("from a strict network to another").In(l.Strict).Out(l.Known).Drop(),
		rule("by routers").Accept(),
	}
}

// IsolatedPorts returns the set of bridge ports that may not exchange frames with each other.
func IsolatedPorts(t *nft.Table) *nft.Set {
	return set(t, "isolated_ports", nft.Ifname)
}

// FamilyName returns "ip" or "ip6", the names of nft(8) for the families.
func FamilyName(v6 bool) string {
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

// OwnersSet returns the set that lists the elements of each owner. A key is the owner's hash in two halves and a
// number, whose upper half is the kind of resource. The comment of an element contains the set, the key and the
// owner's tag.
func OwnersSet(t *nft.Table) *nft.Set {
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
	if strings.HasPrefix(chain, "masquerade_") || strings.HasPrefix(chain, "network_") {
		return set(t, chain, a)
	}
	s := set(t, chain, a, nft.Proto, nft.Service)
	s.Interval = strings.Contains(chain, "_range_")
	return s
}

// isShared reports whether a set of this name is one that sharedSet returns.
func isShared(name string) bool {
	return slices.ContainsFunc([]string{"masquerade_", "network_", "hairpin_", "allow_"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// NetworkSet returns the set of the addresses of a network's containers that masquerade. The rules of the network ask
// it for those in other subnets than the container's own. It is shared as ChainSets are.
func NetworkSet(t *nft.Table, v6 bool, network string) *nft.Set {
	return sharedSet(t, "network_"+FamilyName(v6)+"_"+identity.ShortHash(network))
}

// NodesSet returns the set of the prefixes of all nodes of the cluster that a network belongs to. It belongs to no
// attachment: the agent of the cluster keeps it, and GC leaves it.
func NodesSet(t *nft.Table, v6 bool, network string) *nft.Set {
	s := set(t, "nodes_"+FamilyName(v6)+"_"+identity.ShortHash(network), address(v6))
	s.Interval = true
	return s
}

// ItselfSet returns the set of pairs of a container's address with itself. It lets a container use its own published
// ports when they admit only some sources.
func ItselfSet(t *nft.Table, v6 bool) *nft.Set {
	return set(t, "itself_"+FamilyName(v6), address(v6), address(v6))
}

// SpoofSets returns the set of links whose source MAC addresses are checked, and the set of permitted pairs of link
// and address.
func SpoofSets(t *nft.Table) (links, pairs *nft.Set) {
	return set(t, "spoofcheck", nft.Ifname), set(t, "allowed", nft.Ifname, nft.Ether)
}

// PortMaps are the maps of published ports of one family. Ports with conditions are in separate maps, whose names
// contain a hash of the conditions.
type PortMaps struct {
	V6    bool
	where string
	Exact *nft.Set // host address . protocol . port, asked first
	Any   *nft.Set // protocol . port
	// The same of ranges whose ports lead to the same ports of the container: the kernel cannot count along
	// with a range that is shifted. They are maps of their own, for an interval costs more the more there are.
	ExactRange, AnyRange *nft.Set
	// Claims has the owners that published a port, and Ranges those that published a range, see publish.slot: at any
	// address and at one, the one that the maps lead to and those of the same container that stand by. So a conflict is
	// found, and a mapping taken over, without looking at other ports.
	Claims, Ranges *nft.Set
}

// PortMapsOf returns the maps of a family. Where is the hash of the conditions, or "" for ports without conditions.
func PortMapsOf(t *nft.Table, v6 bool, where string) PortMaps {
	suffix := ""
	if where != "" {
		suffix = "_where_" + where
	}
	of := func(what, kind string, key, data []nft.Type) *nft.Set {
		return &nft.Set{Table: t, Name: what + "_" + FamilyName(v6) + kind + suffix, Key: key, Data: data,
			Interval: strings.HasSuffix(kind, "_range")}
	}
	a := address(v6)
	any, exact := []nft.Type{nft.Proto, nft.Service}, []nft.Type{a, nft.Proto, nft.Service}
	one, same := []nft.Type{a, nft.Service}, []nft.Type{a}
	number := []nft.Type{nft.Proto, nft.Service, nft.Mark}
	// host address, container address, a port, container's hash, index of the host end, see publish.slot
	claim := []nft.Type{a, a, nft.Service, nft.Mark, nft.Mark}
	return PortMaps{V6: v6, where: where,
		Exact:      of("publish", "", exact, one),
		Any:        of("publish", "_any", any, one),
		ExactRange: of("publish", "_range", exact, same),
		AnyRange:   of("publish", "_any_range", any, same),
		Claims:     of("claims", "", number, claim),
		Ranges:     of("ranges", "", number, claim),
	}
}

// Sets returns all maps and sets.
func (p PortMaps) Sets() []*nft.Set {
	return []*nft.Set{p.Exact, p.ExactRange, p.Any, p.AnyRange, p.Claims, p.Ranges}
}

// Rules returns the rules that look a packet up in the maps, in order.
func (p PortMaps) Rules() []*nft.Rule {
	return []*nft.Rule{
		nft.NewRule("at one address").DNAT(p.Exact),
		nft.NewRule("ranges at one address").DNAT(p.ExactRange),
		nft.NewRule("at any address").DNAT(p.Any),
		nft.NewRule("ranges at any address").DNAT(p.AnyRange),
	}
}

// Chain returns the name of the chain to which the conditions jump.
func (p PortMaps) Chain() string { return "publish_" + FamilyName(p.V6) + "_where_" + p.where }

// setNamed is the set that an entry of owners names.
func setNamed(t *nft.Table, name string) *nft.Set {
	if isShared(name) {
		return sharedSet(t, name)
	}
	sets := t.Sets
	if p, ok := PortMapsNamed(t, name); ok {
		sets = p.Sets()
	} else if s, ok := SubnetSetsNamed(t, name); ok {
		sets = s.sets()
	}
	if i := slices.IndexFunc(sets, func(s *nft.Set) bool { return s.Name == name }); i >= 0 {
		return sets[i]
	}
	return nil
}

// PortMapsNamed returns the PortMaps that contain the map or set of that name.
func PortMapsNamed(t *nft.Table, name string) (PortMaps, bool) {
	base, where, _ := strings.Cut(name, "_where_")
	what, rest, _ := strings.Cut(base, "_")
	family, _, _ := strings.Cut(rest, "_")
	return PortMapsOf(t, family == "ip6", where), what == "publish" || what == "claims" || what == "ranges"
}

// SubnetSets are the sets that check the source address of a connection's first packet.
//
// Policies accept replies first. Suppose a container sends itself a packet with a source address of another network.
// Its packets to that address would then count as replies. So an address of a network with a policy can begin
// connections only on the network's own link, and a link with a policy cannot begin connections with addresses of
// another network.
//
// The check is where a packet is forwarded or delivered, and only for new connections: a packet that is dropped there
// creates no conntrack entry. Replies may take any way, as those of containers with two networks do. There is one set
// for each prefix length, because a look-up masks the address.
type SubnetSets struct {
	V6            bool
	Links         *nft.Set // subnet . the link that it is behind
	Bridge        *nft.Set // subnet . the bridge that this link, the gateway of a VLAN, stands on
	Policed, Open *nft.Set // subnet . the same subnet, of networks that have a policy, and of others
	Strict        *nft.Set // the same, of strict networks
}

// SubnetSetsOf returns the SubnetSets for prefixes of the family and length of p.
func SubnetSetsOf(t *nft.Table, v6 bool, bits int) SubnetSets {
	of := func(what string, second nft.Type) *nft.Set {
		s := set(t, fmt.Sprintf("%s_%s_%d", what, FamilyName(v6), bits), address(v6), second)
		s.Bits = bits
		return s
	}
	return SubnetSets{V6: v6,
		Links:   of("subnet", nft.Ifname),
		Bridge:  of("bridged", nft.Ifname),
		Policed: of("policed", address(v6)),
		Open:    of("open", address(v6)),
		Strict:  of("strict", address(v6)),
	}
}

// Rule returns a rule about packets of the family.
func (s SubnetSets) Rule(comment string) *nft.Rule { return nft.NewRule(comment).Family(s.V6) }

func (s SubnetSets) sets() []*nft.Set {
	return []*nft.Set{s.Links, s.Bridge, s.Policed, s.Open, s.Strict}
}

// SubnetSetsNamed returns the SubnetSets that contain the set of that name.
func SubnetSetsNamed(t *nft.Table, name string) (s SubnetSets, ok bool) {
	words := strings.Split(name, "_")
	if len(words) != 3 || words[1] != "ip" && words[1] != "ip6" {
		return s, false
	}
	bits, err := strconv.Atoi(words[2])
	return SubnetSetsOf(t, words[1] == "ip6", bits), err == nil && bits >= 0 && bits <= 128
}

// shared reports whether several owners may have an element of a set. A container address has several: of overlapping
// networks, or while an address moves between networks. So has a container with several attachments. The name of a
// link belongs to one attachment.
func shared(s *nft.Set) bool {
	return len(s.Data) == 0 && (s.Key[0] == nft.Addr || s.Key[0] == nft.Addr6 || s.Name == containersSet)
}
