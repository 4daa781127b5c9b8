package publish

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource/filter"
)

// allowed are the elements that hold ports of a family to those who may use them. Ports that share a list of sources
// shares a chain. The ports are those of the host, by which the container was asked for: the container's own port may
// be published twice, once for all and once for some. What this host sends is not forwarded, and so not held up.
func (p Ports) allowed(t *nft.Table, shared *filter.ChainSet, to netip.Addr, list []span) (all []nft.Elem) {
	v6 := to.Is6()
	var lists []string
	spans := map[string][]span{}
	for _, s := range list {
		if !s.only {
			continue
		}
		k := fmt.Sprint(s.allow)
		if spans[k] == nil {
			lists = append(lists, k)
		}
		spans[k] = append(spans[k], s)
	}
	if lists == nil {
		return nil
	}
	itself := filter.ItselfSet(t, v6)
	for _, k := range lists {
		var rules []*nft.Rule
		for _, from := range spans[k][0].allow {
			rules = append(rules, nft.NewRule("let in").Family(v6).Prefix(false, false, from).Return())
		}
		rules = append(rules, nft.NewRule("the container itself").Pair(itself).Return(),
			nft.NewRule("all others").Drop())
		share := func(name string) *nft.Set {
			return shared.Share("allowfrom", name, func(s *nft.Set) *nft.Rule {
				return nft.NewRule("published to some").PublishedTo(s)
			}, rules)
		}
		all = append(all, portElements("allow_"+filter.FamilyName(v6), share, to, filter.CommentOf(p.Owner),
			spans[k])...)
	}
	return append(all, filter.Owned(p.Owner, itself, to, to))
}
