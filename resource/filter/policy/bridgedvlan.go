package policy

import (
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"golang.org/x/sys/unix"
)

// Labels of conntrack's entries. Unlike its mark, which programs save, restore and overwrite as a whole, a label is
// only ever added, bit by bit.
const (
	labelOnBridge = 30 // br_netfilter had the connection begin on a bridge
	labelRouted   = 31 // and it was let go on by the gateway of its VLAN
)

// bridgedVLANs has p tell what br_netfilter has begun in a VLAN of a bridge from what the host has let through. A frame
// to the gateway of its VLAN comes to the chain forward twice: on the bridge, where nothing tells one VLAN from
// another, and by the gateway's link. It has an entry in conntrack after the first time, by any sender and whatever
// becomes of it then. So that entry counts for nothing until the connection has come by the link of its source's
// network, and it was not dropped: what it begins is asked in whose name it is, and its replies are judged by the
// policies as what begins is.
func bridgedVLANs(p *filter.ChainSet) {
	rule := nft.NewRule
	c := &nft.Chain{Name: "bridged", Rules: append([]*nft.Rule{
		rule("routed since").Label(false, labelRouted).Return(),
		rule("not begun on a bridge").Label(true, labelOnBridge).Return(),
		rule("in whose name").New().Jump("sources"),
	}, filter.LinkSetsOf(&p.Table).Policies()...)}
	// After the chain forward, where the administrator's rules may accept, too.
	p.Chains = append(p.Chains, c, &nft.Chain{Name: "begun", Type: "filter", Hook: unix.NF_INET_FORWARD,
		Priority: filter.PrioFilter + 1, Open: true})
	p.Jump("onbridge", false, rule("begun in a VLAN of a bridge").Jump(c.Name))
}

// addBridged has p label connections from subnets of that length. A label that conntrack has no room for is not there
// afterwards, so that the packet is asked as any other.
func addBridged(s filter.SubnetSets, p *filter.ChainSet) {
	const src, dst = nft.Src, nft.Dst
	p.Sets = append(p.Sets, s.Bridge)
	p.Jump("sources", true, s.Rule("in a VLAN of the bridge").SubnetBy(src, src, false, s.Bridge).
		SubnetBy(src, dst, false, s.Bridge).SetLabel(labelOnBridge).Label(false, labelOnBridge).Return())
	p.Jump("begun", false, s.Rule("by its own link").New().SubnetBy(src, src, false, s.Links).
		Label(false, labelOnBridge).SetLabel(labelRouted))
}
