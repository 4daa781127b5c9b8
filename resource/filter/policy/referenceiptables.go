package policy

import (
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/spec"
)

// iptPolicyRecord is the record of an attachment that a link has rules of a policy in iptables for its sake too.
const iptPolicyRecord = "iptpoliced"

// releasePolicy removes what the policies have in iptables about an attachment's link, unless another one is behind it.
func releasePolicy(ctx context.Context, w *kernel.World, o spec.Owner) error {
	link := ""
	if there, err := w.Store.Get(iptPolicyRecord, o, &link); err != nil || !there {
		return err
	}
	me := identity.OwnerHash(o)
	if err := removePolicies(ctx, w, func(owner [8]byte) bool { return owner != me }, link); err != nil {
		return err
	}
	return w.Store.Delete(iptPolicyRecord, o)
}

// sweepPolicies is releasePolicy for a network's attachments but those that keep wants. Their records are the caller's
// to forget.
func sweepPolicies(ctx context.Context, w *kernel.World, network string, keep func(owner [8]byte) bool) error {
	mine, err := resource.DecodeRecords[string](w.Store.Records(iptPolicyRecord, network))
	var links []string
	stays := func(owner [8]byte) bool { _, ok := mine[owner]; return !ok || keep(owner) }
	for owner, link := range mine {
		if !stays(owner) {
			links = append(links, link)
		}
	}
	if len(links) == 0 {
		return err
	}
	return errors.Join(err, removePolicies(ctx, w, stays, links...))
}

// removePolicies removes the rules about links that none of the attachments that stay is behind. The chain strict is
// ours alone: the reference's own rules are its own.
func removePolicies(ctx context.Context, w *kernel.World, stays func(owner [8]byte) bool, links ...string) error {
	gone := map[string]bool{}
	for _, link := range links {
		gone[link] = true
	}
	return iptables.ChangeHaving(ctx, w, chainStrict, false, func(d *iptables.Draft) error {
		records, err := resource.DecodeRecords[string](w.Store.All(iptPolicyRecord)) // as they are under the lock
		for owner, link := range records {
			if stays(owner) {
				delete(gone, link)
			}
		}
		shared := map[string]bool{}
		for link := range gone {
			is, serr := othersContainers(w, link)
			shared[link], err = is, errors.Join(err, serr)
		}
		deleteAbout(d, func(r xtables.Rule, link string) bool {
			return gone[link] && (!shared[link] || !ofReference(r))
		})
		return err
	})
}

// ofReference reports whether the reference would make such a rule, too.
func ofReference(r xtables.Rule) bool {
	return (r.Chain == iptables.ChainStage1 || r.Chain == chainStage2) && r.Comment != commentPolicy(Strict)
}

// othersContainers reports whether a link is a bridge with a port that leads to a container which we have not attached.
func othersContainers(w *kernel.World, link string) (bool, error) {
	br, err := rtnl.LinkByName(w.Host, link)
	if err != nil || br.Kind != "bridge" {
		return false, resource.ExceptNoLink(err)
	}
	links, err := rtnl.Links(w.Host)
	return slices.ContainsFunc(links, func(p *rtnl.Link) bool {
		_, _, _, ours := identity.ParseTag(p.Alias)
		return p.Master == br.Index && p.Kind == "veth" && !ours && !filter.HostsOwn(links, p)
	}), err
}

// SweepStages removes the rules about links that are gone from the chains of the policies.
func SweepStages(ctx context.Context, w *kernel.World) error {
	return iptables.ChangeHaving(ctx, w, chainStrict, false, func(d *iptables.Draft) error {
		deleteAbout(d, func(_ xtables.Rule, link string) bool {
			_, err := rtnl.LinkByName(w.Host, link)
			return errors.Is(err, rtnl.ErrNoLink)
		})
		return nil
	})
}

// deleteAbout deletes what the policies have about some links.
func deleteAbout(d *iptables.Draft, which func(r xtables.Rule, link string) bool) {
	for _, chain := range policyChains() {
		for _, r := range d.Saved[chain] {
			if slices.ContainsFunc(linksOf(r), func(link string) bool { return which(r, link) }) {
				d.Delete(r)
			}
		}
	}
}
