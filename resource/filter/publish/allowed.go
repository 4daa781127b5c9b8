package publish

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/resource/filter"
)

// allowed are the elements that hold ports of a family to those who may use them. Ports that share a list of sources
// shares a chain. The ports are those of the host, by which the container was asked for: the container's own port may
// be published twice, once for all and once for some. What this host sends is not forwarded, and so not held up.
func (p Ports) allowed(t *nft.Table, shared *filter.ChainSet, to netip.Addr, list []span) (all []nft.Elem) {
	itself := filter.ItselfSet(t, to.Is6())
	spans := map[string][]span{}
	for _, s := range list {
		if s.only {
			k := fmt.Sprint(s.allow)
			spans[k] = append(spans[k], s)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(spans)) {
		var rules []*nft.Rule
		for _, from := range spans[k][0].allow {
			rules = append(rules, nft.NewRule("let in").FromPrefix(from).Return())
		}
		rules = append(rules, nft.NewRule("the container itself").Pair(itself).Return(),
			nft.NewRule("all others").Drop())
		g := portGroup{from: "allowfrom", prefix: "allow", rules: rules, way: func(s *nft.Set) *nft.Rule {
			return nft.NewRule("published to some").PublishedTo(s)
		}}
		all = append(all, g.elements(shared, to, filter.CommentOf(p.Owner), spans[k])...)
	}
	if len(spans) > 0 {
		all = append(all, filter.Owned(p.Owner, itself, to, to))
	}
	return all
}
