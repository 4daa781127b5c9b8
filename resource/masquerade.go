package resource

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Masquerade gives what the attachment's addresses send out of their own network the address of the
// link that it leaves by. Traffic to the network's own prefixes, to multicast and to Except keeps its
// source.
//
// An address stands in the set of its network, whose chain is made once. The latest owner of an address has
// it: who had it before is gone, for IPAM gave it away again.
type Masquerade struct {
	Owner  spec.Owner
	From   []netip.Prefix // the addresses, each with its subnet's length; empty while they are unknown
	Except []netip.Prefix
}

func (m Masquerade) String() string {
	return line("masquerade", prefixes("saddr", m.From), prefixes("daddr !=", m.Except))
}

// Ensure implements plan.Resource.
func (m Masquerade) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	if len(m.From) == 0 {
		return false, nil
	}
	err = withFilter(ctx, w, inetTable(), func(f filter) error {
		part, want := m.want(f.t)
		if err := f.ready(part); err != nil {
			return err
		}
		changed, err = f.settle(m.Owner, kindMasquerade, want)
		return err
	})
	return changed && err == nil, err
}

// Verify implements plan.Resource.
func (m Masquerade) Verify(ctx context.Context, w *kernel.World) error {
	if len(m.From) == 0 {
		return nil
	}
	return withFilter(ctx, w, inetTable(), func(f filter) error {
		part, want := m.want(f.t)
		return f.verify(part, m.Owner, kindMasquerade, want)
	})
}

// Remove implements plan.Remover. It needs only the owner.
func (m Masquerade) Remove(ctx context.Context, w *kernel.World) error {
	return remove(ctx, w, inetTable(), m.Owner, kindMasquerade)
}

// want are the chain and the set of the network, one of each family, and its own elements.
func (m Masquerade) want(t *kernel.NFTTable) (p *part, want []kernel.NFTElem) {
	p = newPart(t)
	for _, v6 := range []bool{false, true} {
		from := ofFamily(m.From, v6)
		if len(from) == 0 {
			continue
		}
		multicast := netip.MustParsePrefix("224.0.0.0/4")
		if v6 {
			multicast = netip.MustParsePrefix("ff00::/8")
		}
		var rules []*kernel.NFTRule
		for _, p := range networks(from) {
			rules = append(rules, kernel.NewNFTRule("its own network").Family(v6).Prefix(true, false, p).Return())
		}
		rules = append(rules, kernel.NewNFTRule("multicast").Family(v6).Prefix(true, false, multicast).Return())
		for _, p := range networks(ofFamily(m.Except, v6)) {
			rules = append(rules, kernel.NewNFTRule("excepted").Family(v6).Prefix(true, false, p).Return())
		}
		rules = append(rules, kernel.NewNFTRule("all else").Masquerade())
		set := p.share("masquerading", "masquerade_"+ip(v6), func(s *kernel.NFTSet) *kernel.NFTRule {
			return kernel.NewNFTRule("a network").From(v6, s)
		}, rules)
		for _, p := range from {
			e := kernel.NFTElem{Set: set, Key: kernel.NFTKey(p.Addr()), Comment: tagOf(m.Owner)}
			if !slices.ContainsFunc(want, func(w kernel.NFTElem) bool { return sameKey(w, e) }) {
				want = append(want, e)
			}
		}
	}
	return p, want
}

// ofFamily are the prefixes of one family, each once.
func ofFamily(list []netip.Prefix, v6 bool) (out []netip.Prefix) {
	for _, p := range list {
		if p.Addr().Is4In6() {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if p.IsValid() && p.Addr().Is6() == v6 && !slices.ContainsFunc(out, func(q netip.Prefix) bool { return q == p }) {
			out = append(out, p)
		}
	}
	return out
}

// networks are the prefixes without host bits, in order, each once.
func networks(list []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, p := range list {
		out[i] = p.Masked()
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	return slices.Compact(out)
}

// prefixes is "word a" or "word { a, b }", or nothing.
func prefixes(word string, list []netip.Prefix) string {
	switch len(list) {
	case 0:
		return ""
	case 1:
		return word + " " + list[0].String()
	}
	s := make([]string, len(list))
	for i, p := range list {
		s[i] = p.String()
	}
	return fmt.Sprintf("%s { %s }", word, strings.Join(s, ", "))
}
