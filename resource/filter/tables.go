package filter

import (
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"golang.org/x/sys/unix"
)

// Priorities of base chains. Ours that translate come one after the standard ones, so that Services and
// other policy are asked first.
const (
	prioRaw    = -300
	prioForged = -200 + 1 // after conntrack, before programs that set marks
	prioDNAT   = -100 + 1
	prioSNAT   = 100 + 1
	prioMark   = -100 + 2 // after translation, before routing
	PrioFilter = 0
	prioBridge = -300
	// ports of a bridge are filtered where bridge filters are
	prioBridgeFilter = -200
)

// InetNamed returns table inet fairlead with its name only, which is enough to ask whether it exists.
func InetNamed() *nft.Table {
	return &nft.Table{Family: unix.NFPROTO_INET, Name: "fairlead"}
}

// InetSets returns the table without its chains, which is enough to remove elements. Building its rules takes ten
// times as long.
func InetSets() *nft.Table {
	t := InetNamed()
	t.Sets = append(t.Sets, OwnersSet(t), holdersSet(t))
	for _, v6 := range []bool{false, true} {
		t.Sets = append(append(t.Sets, PortMapsOf(t, v6, "").Sets()...), ItselfSet(t, v6))
	}
	l := LinkSetsOf(t)
	t.Sets = append(t.Sets, l.Within, l.Isolated, l.Policed, l.Strict, l.Known)
	return t
}

// hooked returns a base chain.
func hooked(typ, name string, hook uint32, priority int32, rules ...*nft.Rule) *nft.Chain {
	return &nft.Chain{Name: name, Type: typ, Hook: hook, Priority: priority, Rules: rules}
}

// Inet returns table inet fairlead: published ports and masquerading. docs/nftables.md contains a drawing. The chain
// "user" is for the administrator: it is evaluated first, made once and never changed.
func Inet() *nft.Table {
	t := InetSets()
	rule := nft.NewRule
	administrator := rule("administrator").Jump("user")
	ports := rule("published ports").ToLocal().Jump("publish")
	publish := &nft.Chain{Name: "publish", Rules: []*nft.Rule{rule("under conditions").Jump("conditions")}}
	for _, v6 := range []bool{false, true} {
		publish.Rules = append(publish.Rules, PortMapsOf(t, v6, "").Rules()...)
	}
	l := LinkSetsOf(t)
	for _, open := range []string{
		"user",
		"allowfrom",    // a line for each list of those who may use a published port,
		"onbridge",     // one where a VLAN of a bridge is a network's,
		"marking",      // one, and
		"sources",      // two for each length of networks' prefixes,
		"ends",         // two,
		"bothends",     // one,
		"conditions",   // for each set of conditions,
		"hairpin",      // for each network with published ports,
		"masquerading", // and for each network that masquerades: see ChainSet
	} {
		t.Chains = append(t.Chains, &nft.Chain{Name: open, Open: true})
	}
	t.Chains = append(t.Chains,
		publish,
		&nft.Chain{Name: "errors", Rules: l.errors()},
		// route_localnet lets 127.0.0.1 be published, and would let neighbours in to what listens there.
		hooked("filter", "guard", unix.NF_INET_PRE_ROUTING, prioRaw,
			rule("IP sees it").Mark(true, 0, UnseenMark).ClearMark(UnseenMark),
			rule("127/8 from outside").NotLo().TowardPrefix(Loopback()).Drop(),
			rule("127/8 from outside").NotLo().FromPrefix(Loopback()).Drop()),
		// What begins a connection in the name of another container. It is dropped here and not in forward and input,
		// because programs that restore the mark of a connection overwrite this one.
		hooked("filter", "forged", unix.NF_INET_PRE_ROUTING, prioForged,
			rule("in the name of another container").Mark(true, 0, ForgedMark).NewOrRelated().Drop()),
		hooked("nat", "prerouting", unix.NF_INET_PRE_ROUTING, prioDNAT, administrator, ports),
		hooked("nat", "output", unix.NF_INET_LOCAL_OUT, prioDNAT, administrator, ports),
		hooked("nat", "postrouting", unix.NF_INET_POST_ROUTING, prioSNAT,
			administrator,
			rule("published ports, back to where it came from").Translated().Jump("hairpin"),
			rule("out of a network").Jump("masquerading")),
		hooked("filter", "decided", unix.NF_INET_PRE_ROUTING, prioMark,
			rule("this table decides").Jump("marking"),
			rule("from a strict network").In(l.Strict).SetMark(StrictMark)),
		hooked("filter", "input", unix.NF_INET_LOCAL_IN, PrioFilter,
			rule("in whose name").NotLo().New().Jump("sources")),
		hooked("filter", "forward", unix.NF_INET_FORWARD, PrioFilter, append([]*nft.Rule{
			administrator,
			// What br_netfilter has come here a second time has been asked, but see bridgedVLANs.
			rule("in whose name").New().Unconfirmed().Jump("sources"),
			rule("published ports, who may use them").Translated().Jump("allowfrom"),
			rule("begun on a bridge").Confirmed().Jump("onbridge"),
			rule("replies").Reply().Accept(),
			rule("what a helper of conntrack expects").Expected().Accept(),
			rule("errors about connections").Related().Jump("errors"),
		}, l.Policies()...)...))
	return t
}

// DecidedMark is the bit of a packet's mark that means that the chain forward decides about the packet. Substitutes
// for that chain ignore packets with the bit: they act where packets do not pass the chain, and after a flush. No
// other program is known to use the bit: not Kubernetes (0x4000, 0x8000), the reference's plugins (0x2000), Cilium
// (0xf00), Calico and Tailscale (above 0xffff).
const DecidedMark = 0x1000

// StrictMark is the bit of a packet's mark for all packets from a strict network. rp_filter looks up the route to the
// packet's source with this mark (src_valid_mark). That look-up must not meet the rule that prohibits others the way
// into the network.
const StrictMark = 0x4000000

// ForgedMark is the bit of a packet's mark that means that the packet came by an isolated port of a bridge, with an
// address of another container (see PortAddressSets). The bridge sets it, and the chain forged asks for it before other
// programs see the packet.
const ForgedMark = 0x80

// UnseenMark is the bit of a packet's mark that means that the packet came by an isolated port of a bridge, and that
// the rules of IP have not seen it. The bridge sets it, and the chain guard clears it. A packet on a bridge comes there
// only where br_netfilter passes it through the rules of IP.
const UnseenMark = 0x40

// BridgeNamed returns table bridge fairlead with its name only, as InetNamed does for the other table. bridgeSets is
// the counterpart of InetSets.
func BridgeNamed() *nft.Table {
	return &nft.Table{Family: unix.NFPROTO_BRIDGE, Name: "fairlead"}
}

func bridgeSets() *nft.Table {
	t := BridgeNamed()
	links, pairs := SpoofSets(t)
	t.Sets = append([]*nft.Set{OwnersSet(t), holdersSet(t), links, pairs, IsolatedPorts(t)},
		PortAddressSetsOf(t).sets()...)
	return t
}

// Bridge returns table bridge fairlead: the spoof check, and ports that are isolated from each other.
func Bridge() *nft.Table {
	t := bridgeSets()
	links, pairs := SpoofSets(t)
	ports, guarded := IsolatedPorts(t), PortAddressSetsOf(t).Guarded
	rule := nft.NewRule
	administrator := rule("administrator").Jump("user")
	t.Chains = []*nft.Chain{
		{Name: "user", Open: true},
		hooked("filter", "prerouting", unix.NF_INET_PRE_ROUTING, prioBridge, append([]*nft.Rule{
			administrator,
			rule("source address of another container").FromGuarded(links, pairs).Drop(),
		}, PortAddressSetsOf(t).rules()...)...),
		hooked("filter", "forward", unix.NF_INET_FORWARD, prioBridgeFilter,
			administrator,
			// Where br_netfilter passes frames through the rules of IP, the chain forward there decides: a published
			// port may lead from one port of the bridge to another.
			rule("within an isolated network").In(ports).Out(ports).Mark(false, 0, DecidedMark).Drop(),
			rule("unseen by the rules of IP").In(guarded).Out(guarded).Mark(true, 0, UnseenMark).Drop()),
	}
	return t
}
