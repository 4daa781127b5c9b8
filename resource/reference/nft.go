package reference

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"golang.org/x/sys/unix"
)

// What the reference would have made in nftables, for a handover. Each of its chains is made where it is missing, with
// what always stands in it; the attachment's rules are made anew.

// referenceTable makes a table of the reference with its chains, and puts rules in where none of that comment and kind
// are. Sign says whose a rule is.
func referenceTable(w *kernel.World, t *nft.Table, v6 bool, sign func(comment string) bool,
	rules map[string][]*nft.Rule) (changed bool, err error) {
	err = filter.ReferenceNFT(w, func(n *nft.Conn) error {
		var b nft.Batch
		b.AddTable(t)
		for _, c := range t.Chains {
			there, err := n.HasChain(t, c.Name)
			if err != nil {
				return err
			}
			if !there {
				b.AddChain(t, c)
			}
		}
		for _, c := range t.Chains {
			have, err := xtables.ChainRules(n, t, c.Name, v6)
			if err != nil {
				return err
			}
			if len(have) == 0 {
				for _, r := range c.Rules {
					b.AddRule(t, c.Name, r)
					changed = true
				}
			}
			have = slices.DeleteFunc(have, func(r xtables.Rule) bool { return !sign(r.Comment) })
			if len(have) == len(rules[c.Name]) {
				continue
			}
			xtables.RemoveRules(&b, t, have)
			for _, r := range rules[c.Name] {
				b.AddRule(t, c.Name, r)
			}
			changed = true
		}
		if !changed {
			return nil
		}
		return n.Commit(&b)
	})
	return changed, err
}

// Ensure implements plan.Resource, for a handover.
func (f Ports) Ensure(_ context.Context, w *kernel.World) (changed bool, err error) {
	if f.Publish == nil {
		return false, nil
	}
	for _, v6 := range []bool{false, true} {
		did, err := f.ensure(w, v6)
		if changed = changed || did; err != nil {
			return changed, err
		}
	}
	return changed, nil
}

func (f Ports) ensure(w *kernel.World, v6 bool) (bool, error) {
	to, conditions := f.Publish.Family(v6)
	t := publish.ReferencePortsTable(v6)
	if !to.IsValid() {
		return false, nil
	}
	if len(conditions) > 0 {
		return false, fmt.Errorf(
			"%s: %q: the reference has one set of conditions for all containers; hand over by iptables",
			publish.ConditionsKey(v6), strings.Join(conditions, " "))
	}
	rule := nft.PlainRule
	local := func() []*nft.Rule { return []*nft.Rule{rule("").ToLocal().Jump("hostports_all")} }
	t.Chains = []*nft.Chain{
		{Name: "hostports"}, {Name: "hostip_hostports"},
		{Name: "hostports_all", Rules: []*nft.Rule{rule("").Jump("hostip_hostports"), rule("").Jump("hostports")}},
		{Name: "prerouting", Type: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: -100, Rules: local()},
		{Name: "output", Type: "nat", Hook: unix.NF_INET_LOCAL_OUT, Priority: -100, Rules: local()},
		{Name: "masquerading", Type: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: 100},
	}
	id := f.Owner.ContainerID
	rules := map[string][]*nft.Rule{}
	for _, m := range publish.AllPieces(f.Publish.Mappings) {
		proto, ok := kernel.ParseProto(m.Protocol)
		host, here := m.Host(v6)
		if !ok || !here || len(m.AllowFrom) > 0 {
			continue
		}
		r, port := rule(id), m.ContainerPort
		if m.Len() > 1 {
			port = 0 // which keeps its number
		}
		if !host.IsUnspecified() {
			r.Prefix(true, false, netip.PrefixFrom(host, host.BitLen()))
		}
		rules["hostports"] = append(rules["hostports"],
			r.Proto(false, proto).Port(true, false, m.HostPort, m.Last()).DNATTo(netip.AddrPortFrom(to.Addr(), port)))
	}
	dst := netip.PrefixFrom(to.Addr(), to.Addr().BitLen())
	masquerade := func(src netip.Prefix) {
		rules["masquerading"] = append(rules["masquerading"],
			rule(id).Prefix(false, false, src).Prefix(true, false, dst).Masquerade())
	}
	switch {
	case f.Publish.MasqAll:
		rules["masquerading"] = []*nft.Rule{rule(id).Prefix(true, false, dst).Masquerade()}
	case f.Publish.SNAT:
		masquerade(dst)
		if !v6 {
			masquerade(netip.MustParsePrefix("127.0.0.1/32"))
		}
	}
	return referenceTable(w, t, v6, func(comment string) bool { return comment == id }, rules)
}

// Verify implements plan.Resource. It does nothing: Ensure finds out whether a handover is needed.
func (f Ports) Verify(context.Context, *kernel.World) error { return nil }

// Ensure implements plan.Resource, for a handover.
func (f Masquerade) Ensure(_ context.Context, w *kernel.World) (bool, error) {
	if len(f.From) == 0 {
		return false, nil
	}
	rule := nft.PlainRule
	t := &nft.Table{Family: unix.NFPROTO_INET, Name: "cni_plugins_masquerade", Chains: []*nft.Chain{
		{Name: "masq_checks"},
		{Name: "postrouting", Type: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: 100, Rules: []*nft.Rule{
			rule("").Family(false).Prefix(true, false, netip.MustParsePrefix("224.0.0.0/4")).Return(),
			rule("").Family(true).Prefix(true, false, netip.MustParsePrefix("ff00::/8")).Return(),
			rule("").Goto("masq_checks"),
		}},
	}}
	mark := referenceMark(f.Owner)
	comment := mark + fmt.Sprintf(", net: %s, if: %s, id: %s", f.Owner.Network, f.Owner.IfName, f.Owner.ContainerID)
	comment = comment[:min(len(comment), nft.CommentMax)]
	var rules []*nft.Rule
	for _, v6 := range []bool{false, true} {
		for _, p := range filter.OfFamily(f.From, v6) {
			rules = append(rules, rule(comment).Family(v6).Prefix(false, false,
				netip.PrefixFrom(p.Addr(), p.Addr().BitLen())).Prefix(true, true, p.Masked()).Masquerade())
		}
	}
	return referenceTable(w, t, false, func(comment string) bool { return strings.HasPrefix(comment, mark) },
		map[string][]*nft.Rule{"masq_checks": rules})
}

// Verify implements plan.Resource. It does nothing: Ensure finds out whether a handover is needed.
func (f Masquerade) Verify(context.Context, *kernel.World) error { return nil }

// Ensure implements plan.Resource, for a handover.
func (f SpoofCheck) Ensure(_ context.Context, w *kernel.World) (bool, error) {
	if f.Link == "" {
		return false, nil
	}
	mac, err := net.ParseMAC(f.MAC)
	if err != nil {
		return false, err
	}
	name := f.Owner.ContainerID + "-" + f.Owner.IfName
	chain, comment := "cni-br-iface-"+name, "macspoofchk-"+name
	comment = comment[:min(len(comment), nft.CommentMax)]
	t := &nft.Table{Family: unix.NFPROTO_BRIDGE, Name: "nat", Chains: []*nft.Chain{
		{Name: "PREROUTING", Type: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: -300},
		{Name: chain}, {Name: chain + "-mac"},
	}}
	rule := func() *nft.Rule { return nft.PlainRule(comment) }
	return referenceTable(w, t, false, func(c string) bool { return c == comment }, map[string][]*nft.Rule{
		"PREROUTING":   {rule().Iifname(false, f.Link).Jump(chain)},
		chain:          {rule().Jump(chain + "-mac")},
		chain + "-mac": {rule().Ether(mac).Return(), rule().Drop()},
	})
}

// Verify implements plan.Resource. It does nothing: Ensure finds out whether a handover is needed.
func (f SpoofCheck) Verify(context.Context, *kernel.World) error { return nil }
