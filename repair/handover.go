package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
)

// Handed is the State of an attachment whose rules are the reference's now.
const Handed State = "handed over"

// HandOver rewrites what attachments have in the packet filter as the reference plugins would have made it, by the
// backend iptables or nftables, so that these can check and remove it. Theirs is made before ours is removed: what is
// published stays so.
func (r *Repairer) HandOver(ctx context.Context, backend string) (*Report, error) {
	host, err := sdk.OpenHost()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	report := &Report{}
	list, problems := r.Runtime.List(r.Network)
	for _, p := range problems {
		report.Problems = append(report.Problems, p.Error())
	}
	slices.SortStableFunc(list, func(a, b attach.Cached) int { return a.Stored.Compare(b.Stored) })
	lists := r.lists()
	var all []*attached
	unused := map[string]bool{} // networks, by whether nothing of ours is left on them
	for i := range list {
		a := r.plan(ctx, host, lists, &list[i])
		a.handOver(ctx, backend)
		all = append(all, a)
		used, seen := unused[a.Owner.Network]
		unused[a.Owner.Network] = (used || !seen) && a.State == Handed
	}
	if !r.DryRun {
		for network, none := range unused {
			if none {
				err = errors.Join(err, resource.SweepNetwork(ctx, host, network, false))
			}
		}
	}
	report.merge(all)
	return report, errors.Join(err, ctx.Err())
}

// handOver hands one attachment over.
func (a *attached) handOver(ctx context.Context, backend string) {
	if a.State == Gone || len(a.want) == 0 || !a.made && len(a.NotOurs) > 0 {
		return
	}
	release, still, err := a.r.Runtime.Hold(ctx, a.cached)
	if err == nil && !still {
		a.State = Busy
	}
	if err != nil || !still {
		a.broken(err)
		return
	}
	defer release()
	w, err := sdk.Inside(a.host, a.Owner, a.cached.Netns)
	switch {
	case a.cached.Netns == "" || errors.Is(err, kernel.ErrHostNamespace):
		return // nothing of it is in the packet filter
	case errors.Is(err, kernel.ErrNoNamespace):
		a.gone("its network namespace is gone: %v", err)
		return
	case err != nil:
		a.broken(err)
		return
	}
	defer w.Container.Close()
	failed := false
	for _, want := range a.want {
		h, ok := plan.Unwrap(want).(resource.Handed)
		if !ok {
			continue
		}
		to, lost := h.Handover(backend)
		a.Lost = append(a.Lost, lost...)
		if err := a.replace(ctx, w, h, to); err != nil {
			failed = true
			a.broken(fmt.Errorf("%v: %w", h, err))
		}
	}
	if failed {
		return
	}
	a.State = Handed
	if !a.r.DryRun {
		a.broken(errors.Join(resource.ForgetHandedOver(w, a.Owner), sdk.Unmake(w, a.Owner)))
	}
}

// replace makes what stands for a resource, and then removes that.
func (a *attached) replace(ctx context.Context, w *kernel.World, ours resource.Handed, theirs plan.Plan) error {
	for _, r := range theirs {
		if !a.r.DryRun {
			if _, err := r.Ensure(ctx, w); err != nil {
				return err
			}
		}
		a.did(r.String())
	}
	if remover, ok := ours.(plan.Remover); ok && !a.r.DryRun && !resource.HandedAsIs(ours) {
		return remover.Remove(ctx, w)
	}
	return nil
}
