package cli

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/attach"
)

// collectGone removes what containers left that are gone by proof: of the network of that name, or of all where it is
// empty. First their attachments, by DEL, then leases that no attachment is remembered for. An attachment that cannot
// be removed does not keep the others.
func (a *app) collectGone(ctx context.Context, name string) error {
	list, problems := (&attach.Runtime{}).List(name)
	if err := unseen(problems); err != nil {
		return err
	}
	for _, p := range problems {
		a.note("%v", p) // nobody knows whether that is gone
	}
	gone := map[string][]attach.Cached{}
	var networks []string
	if name != "" {
		networks = append(networks, name)
	}
	for _, c := range list {
		if !isGone(c) {
			continue
		}
		if gone[c.Network] == nil && name == "" {
			networks = append(networks, c.Network)
		}
		gone[c.Network] = append(gone[c.Network], c)
	}
	doc := collected{Network: name, Removed: []attached{}}
	var errs []error
	var pools []pool
	for _, network := range networks {
		n, err := a.network(network)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed, err := a.deleteGone(ctx, n, gone[network])
		doc.Removed = append(doc.Removed, removed...)
		errs = append(errs, err)
		if p, err := poolOf(n.List, true); err == nil && name != "" {
			pools = append(pools, p)
		}
	}
	if name == "" {
		all, wrong, err := a.pools(ctx, "")
		pools, errs = all, append(errs, err)
		for _, w := range wrong {
			a.note("%s", w)
		}
	}
	for _, p := range pools {
		leases, err := p.ledger.Reclaim(ctx, p.network, false)
		errs = append(errs, err)
		for _, l := range leases {
			doc.Reclaimed = append(doc.Reclaimed, leaseAddress(p.network, l))
		}
	}
	if a.json() {
		return errors.Join(append(errs, printJSON(a.stdout, doc))...)
	}
	for _, r := range doc.Removed {
		if name == "" {
			a.print("removed %s/%s/%s\n", r.Network, r.ContainerID, r.IfName)
		} else {
			a.print("removed %s/%s\n", r.ContainerID, r.IfName)
		}
	}
	for _, r := range doc.Reclaimed {
		a.print("%s\n", r.reclaimed())
	}
	return errors.Join(errs...)
}

// deleteGone deletes attachments of a network whose namespaces are gone, each by the list that it was attached by, and
// returns those that it removed.
func (a *app) deleteGone(ctx context.Context, n *network, gone []attach.Cached) (removed []attached, err error) {
	rt, err := a.runtime(n)
	if err != nil {
		return nil, err
	}
	var errs []error
	var otherwise []attach.Cached
	for i, err := range rt.DelEach(ctx, n.List, gone, attach.Continue()) {
		c := gone[i]
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, attached{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName, Netns: c.Netns})
		otherwise = append(otherwise, c)
	}
	if !n.remembered {
		a.noteChanged(n.List, otherwise)
	}
	return removed, errors.Join(errs...)
}
