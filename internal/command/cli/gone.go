package cli

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/ipam"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
)

// collectGone removes what containers left that are proven gone, in one network, or in all if only is nil. It deletes
// attachments first, and then leases without an attachment in the cache. It continues after an attachment that cannot
// be removed.
func collectGone(ctx context.Context, a *app.App, only *netconf.Network) error {
	name := ""
	if only != nil {
		name = only.Name
	}
	s, err := snapshot.Open(name)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, line := range s.Problems(a, name) {
		a.Note("%s", line) // whether these attachments are gone is unknown
	}
	gone := map[string][]attach.Cached{}
	if name != "" {
		gone[name] = nil
	}
	for _, c := range s.All {
		if s.Gone(c) {
			gone[c.Network] = append(gone[c.Network], c)
		}
	}
	doc := collected{Network: name, Removed: []attached.Key{}}
	var errs []error
	var pools []netconf.Pool
	for _, network := range slices.Sorted(maps.Keys(gone)) {
		n := only
		if n == nil {
			var err error
			if n, err = netconf.Find(a, network); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		removed, err := deleteGone(ctx, a, n, gone[network])
		for _, c := range removed {
			doc.Removed = append(doc.Removed, attached.KeyOf(c.Owner(), c.Netns))
			doc.names = append(doc.names, attached.ShortOwner(c))
		}
		errs = append(errs, err)
		if p, err := netconf.PoolOf(n.List, true); err == nil && name != "" {
			pools = append(pools, p)
		}
	}
	if name == "" {
		all, wrong, err := netconf.Pools(ctx, a, "")
		pools, errs = all, append(errs, err)
		a.NoteAll(wrong)
	}
	for _, p := range pools {
		errs = append(errs, doc.reclaim(ctx, p))
	}
	return errors.Join(append(errs, doc.print(a))...)
}

// reclaim removes the leases of a pool whose containers are proven gone.
func (doc *collected) reclaim(ctx context.Context, p netconf.Pool) error {
	leases, err := p.Ledger.Reclaim(ctx, p.Network, false)
	for _, l := range leases {
		doc.Reclaimed = append(doc.Reclaimed, ipam.LeaseAddress(p.Network, l))
	}
	return err
}

// print prints what was removed.
func (doc collected) print(a *app.App) error {
	if a.JSON() {
		return a.PrintJSON(doc)
	}
	for _, name := range doc.names {
		a.Print("removed %s\n", name)
	}
	for _, r := range doc.Reclaimed {
		a.Print("%s\n", r.Reclaimed())
	}
	return nil
}

// deleteGone deletes attachments of a network whose namespaces are gone, each by the list that attached it. It
// returns those it removed.
func deleteGone(ctx context.Context, a *app.App, n *netconf.Network,
	gone []attach.Cached) (removed []attach.Cached, err error) {
	rt, err := netconf.Runtime(a, n)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, err := range rt.DelEach(ctx, n.List, gone, attach.Continue()) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, gone[i])
	}
	if !n.Remembered {
		target.NoteChanged(a, n.List, removed)
	}
	return removed, errors.Join(errs...)
}
