package filter

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
)

// allowed are the elements that hold ports of a family to those who may use them. Whoever shares a list of sources
// shares a chain. The ports are those of the host, by which the container was asked for: the container's own port may
// be published twice, once for all and once for some. What this host sends is not forwarded, and so not held up.
func (p Publish) allowed(t *kernel.NFTTable, shared *chainSet, to netip.Addr, list []span) (all []kernel.NFTElem) {
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
	itself := itselfSet(t, v6)
	for _, k := range lists {
		var rules []*kernel.NFTRule
		for _, from := range spans[k][0].allow {
			rules = append(rules, kernel.NewNFTRule("let in").Family(v6).Prefix(false, false, from).Return())
		}
		rules = append(rules, kernel.NewNFTRule("the container itself").Pair(v6, itself).Return(),
			kernel.NewNFTRule("all others").Drop())
		share := func(name string) *kernel.NFTSet {
			return shared.share("allowfrom", name, func(s *kernel.NFTSet) *kernel.NFTRule {
				return kernel.NewNFTRule("published to some").PublishedTo(v6, s)
			}, rules)
		}
		all = append(all, portElements("allow_"+ip(v6), share, to, tagOf(p.Owner), spans[k])...)
	}
	return append(all, kernel.NFTElem{Set: itself, Key: kernel.NFTKey(to, to), Comment: tagOf(p.Owner)})
}
