package filter

import (
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"golang.org/x/sys/unix"
)

// containersSet is the name of the set of containers that have a guarded port, whose holders are their attachments.
const containersSet = "containers"

// PortAddressSets are the sets that find packets in the name of another container of an isolated network.
//
// Policies accept replies first. Suppose a container sends a host outside, or its own published port, a packet with
// the address of a neighbor. What it then sends the neighbor in the name of that host would count as a reply. The link
// is the same for both, so only the bridge can tell them apart, by its port.
//
// Only addresses of attachments are kept to their ports. A container may send with any other address: one that moves
// between containers (VRRP), or one that it routes for.
type PortAddressSets struct {
	Guarded    *nft.Set // ports whose packets are compared
	Containers *nft.Set // container, held by each of its attachments with a guarded port
}

// PortAddressSetsOf returns the PortAddressSets of a table.
func PortAddressSetsOf(t *nft.Table) PortAddressSets {
	return PortAddressSets{Guarded: set(t, "guarded_ports", nft.Ifname), Containers: set(t, containersSet, nft.Mark)}
}

// Addresses returns the set of addresses that only their own container may begin connections with.
func (p PortAddressSets) Addresses(v6 bool) *nft.Set {
	return set(p.Guarded.Table, "addresses_"+FamilyName(v6), address(v6))
}

// Pairs returns the set of ports with the addresses of their container. A container that has several attachments may
// send with the address of one by the port of another.
func (p PortAddressSets) Pairs(v6 bool) *nft.Set {
	return set(p.Guarded.Table, "port_addresses_"+FamilyName(v6), nft.Ifname, address(v6))
}

func (p PortAddressSets) sets() []*nft.Set {
	return []*nft.Set{p.Guarded, p.Containers, p.Addresses(false), p.Addresses(true), p.Pairs(false), p.Pairs(true)}
}

// rules are those for packets from guarded ports. They mark packets in the name of another container, and all packets
// until IP sees them. They drop what the mark does not help against:
//   - fragments, for the kernel puts them together to a packet with the mark of the first one and the link of the last
//     one, which may come by different links;
//   - ARP and neighbor discovery from another container's address, which are no connections;
//   - ARP with a tag of VLAN 0, because the rule for ARP would miss it after nft(8) loaded its own listing: it then
//     asks for "ether type arp";
//   - frames with a second tag of VLAN 0, which the kernel strips only after the bridge, so that nothing is compared.
//
// A neighbor advertisement is about its target, whose address may be another one than the source. nft(8) 1.0.6 has
// no word for that field, so it could not load a rule that looks the field up in a set of addresses. So the first rule
// makes the target the source, which it is in what Linux sends for its own addresses. Receivers look at the target
// only.
//
// They ask for the protocol by "meta protocol". Before a tag of VLAN 0 the frame has the type of the tag, but the
// kernel strips the tag and takes the packet.
func (p PortAddressSets) rules() (rules []*nft.Rule) {
	const ip, arp, ip6, vlan, serviceVLAN = 0x0800, 0x0806, 0x86dd, 0x8100, 0x88a8
	from := func(comment string) *nft.Rule { return nft.NewRule(comment).In(p.Guarded) }
	claim := func(comment string, protocol uint16, c nft.Claim, v6 bool) *nft.Rule {
		return from(comment).Protocol(protocol).Claims(c, p.Addresses(v6), p.Pairs(v6))
	}

	for _, tag := range []uint16{vlan, serviceVLAN} {
		rules = append(rules, from("address behind a second tag of VLAN 0").VLAN0(true).Protocol(tag).Drop())
	}
	return append(rules,
		claim("address of another container", ip, nft.ClaimIP, false).SetMark(ForgedMark),
		claim("fragment with it", ip, nft.ClaimIP, false).Fragment(false).Drop(),
		from("ARP with a tag of VLAN 0").VLAN0(false).Protocol(arp).Drop(),
		claim("ARP with it", arp, nft.ClaimARP, false).Drop(),
		from("neighbor advertisement").Protocol(ip6).SourceIsTarget(),
		claim("address of another container", ip6, nft.ClaimIP6, true).SetMark(ForgedMark),
		claim("fragment with it", ip6, nft.ClaimIP6, true).Fragment(true).Drop(),
		claim("neighbor discovery with it", ip6, nft.ClaimIP6, true).Proto(false, unix.IPPROTO_ICMPV6).Drop(),
		from("not seen by the rules of IP yet").SetMark(UnseenMark))
}
