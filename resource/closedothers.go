package resource

import (
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
)

// asRules is the comment of elements that were made again because a Closed holds the link. Their owner takes them over.
const asRules = "as ip rules have it"

// others are the elements that say of every other link that a Closed holds that nobody may send there from a
// network with a policy. After a flush the first attachment that puts its own policy back has the table decide
// about what its containers send, so the table has to know all at once.
func (i Ingress) others(w *kernel.World, t *kernel.NFTTable, link string) (list []kernel.NFTElem, err error) {
	if i.Policy == PolicyOpen { // which the table lets pass in any case
		return nil, nil
	}
	rules, _, err := closed{}.standing(w)
	sets := linkSets(t)
	add := func(s *kernel.NFTSet, link string) {
		e := kernel.NFTElem{Set: s, Key: kernel.NFTKey(link), Comment: asRules}
		if !slices.ContainsFunc(list, func(have kernel.NFTElem) bool { return sameKey(have, e) }) {
			list = append(list, e)
		}
	}
	for _, r := range rules {
		if r.Priority != closedExempt || r.IIF == "lo" || r.IIF == link {
			continue
		}
		add(sets.policed, r.IIF)
		add(sets.known, r.IIF)
		if slices.ContainsFunc(rules, func(in kernel.Rule) bool { return in.Priority == closedIn && in.To == r.To }) {
			add(sets.strict, r.IIF)
		}
	}
	return list, err
}

// forgetOthers removes those elements of a link that nobody took over.
func forgetOthers(ctx context.Context, w *kernel.World, link string) error {
	err := withFilter(ctx, w, inetTable(), func(f filter) error {
		sets := linkSets(f.t)
		var ask []kernel.NFTElem
		for _, s := range []*kernel.NFTSet{sets.policed, sets.known, sets.strict} {
			ask = append(ask, kernel.NFTElem{Set: s, Key: kernel.NFTKey(link)})
		}
		found, err := f.Get(ask...)
		var b kernel.NFTBatch
		for i, e := range found {
			if e != nil && e.Comment == asRules {
				b.Delete(ask[i])
			}
		}
		return errors.Join(err, f.Commit(&b))
	})
	if unavailable(err) {
		return nil
	}
	return err
}
