package policy

import (
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// NetworkOwner returns the owner of a bridge's policy.
func NetworkOwner(network, link string) spec.Owner { return filter.NetworkOwner(network, link) }

// SweepNetwork removes what a network has in the packet filter for bridges that are gone. If no attachment of the
// network is left, this includes a bridge without ports, because another network may use that bridge too.
func SweepNetwork(ctx context.Context, w *kernel.World, network string, used bool) error {
	return ReleaseNetwork(ctx, w, network, func(link string) (bool, error) { return stands(w, link, used) })
}

// ReleaseNetwork removes the policies and routing rules that a network itself has for links, but for those for which
// keeps returns true. A handover calls it when the rules of the reference stand.
func ReleaseNetwork(ctx context.Context, w *kernel.World, network string, keeps func(link string) (bool, error)) error {
	// What prohibits the way goes before the marks that lift it.
	if err := sweepProhibitions(w, network, keeps); err != nil {
		return err
	}
	err := filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		all := func([8]byte) bool { return true }
		entries, err := f.ListAgain(network, nil, all, filter.KindNetwork, filter.KindSubnet)
		if err != nil {
			return err
		}
		var errs []error
		done := map[[8]byte]bool{}
		for _, e := range entries {
			ofNetwork := e.Network == identity.NetworkHash(network) && e.Kind == filter.KindNetwork
			if !ofNetwork || done[e.Owner] {
				continue
			}
			done[e.Owner] = true
			stays, err := keeps(linkOf(e.Place))
			if err == nil && !stays {
				err = f.Attempt(ctx, func(f filter.Tx) error {
					return errors.Join(f.Drop(e.Owner, filter.KindNetwork), f.Drop(e.Owner, filter.KindSubnet))
				})
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return filter.ExceptUnavailable(err)
}

// linkOf is the link that an element of a policy is about.
func linkOf(e nft.Elem) string {
	if e.Set != nil {
		if f := nft.Fields(e.Set.Key, e.Key); len(f) > 0 {
			name, _ := f[0].(string)
			return name
		}
	}
	return ""
}

// stands reports whether a bridge's policy is still needed.
func stands(w *kernel.World, link string, used bool) (bool, error) {
	l, err := rtnl.LinkByName(w.Host, link)
	if err != nil || used {
		return err == nil, resource.ExceptNoLink(err)
	}
	if br, err := filter.LeadsTo(w, l); err != nil {
		return false, err
	} else if br != nil {
		l = br
	}
	links, err := rtnl.Links(w.Host)
	return slices.ContainsFunc(links, func(p *rtnl.Link) bool {
		return p.Master == l.Index &&
			!filter.HostsOwn(links, p)
	}), err
}
