package repair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/reference"
)

// The states of a handover. Repair leaves an attachment that was handed over alone until it is attached again.
const (
	ToHand State = "to be handed over" // in a dry run
	Handed State = "handed over"       // its rules are the reference's now
	Before State = "handed over before"
)

// HandOver rewrites the packet filter rules of attachments as the reference plugins would make them, with the
// backend iptables or nftables, so that those can check and remove them. It makes their rules before it removes
// Fairlead's, so that ports stay published.
func (r *Repairer) HandOver(ctx context.Context, backend string) (*Report, error) {
	host, err := restore.OpenHost()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	r.backend = backend
	defer func() { r.backend = "" }()
	report := &Report{}
	list, problems := r.Runtime.List(r.Network)
	for _, p := range problems {
		if errors.Is(p, attach.ErrUnseen) {
			return report, p
		}
		report.Problems = append(report.Problems, p.Error())
	}
	slices.SortStableFunc(list, func(a, b attach.Cached) int { return a.Stored.Compare(b.Stored) })
	lists := r.lists()
	var all []*attached
	for i := range list {
		a := r.plan(ctx, host, lists, &list[i])
		a.handOver(ctx, backend)
		all = append(all, a)
	}
	if !r.DryRun {
		err = r.release(ctx, host)
	}
	report.merge(all)
	return report, errors.Join(err, ctx.Err())
}

// release removes what networks have for bridges without an attachment of this project.
func (r *Repairer) release(ctx context.Context, host *kernel.World) error {
	list, _ := r.Runtime.List("") // networks may share a bridge
	keep, networks := map[string]bool{}, []string{}
	for _, c := range list {
		if !slices.Contains(networks, c.Network) {
			networks = append(networks, c.Network)
		}
		if c.Result == nil || c.Gone() || !restore.WasAttached(host, c.Owner()) {
			continue
		}
		for _, f := range c.Result.Interfaces {
			if f.Sandbox == "" {
				keep[f.Name] = true
			}
		}
	}
	var errs []error
	for _, network := range networks {
		errs = append(errs, policy.ReleaseNetwork(ctx, host, network, func(link string) (bool, error) {
			return keep[link], nil
		}))
	}
	return errors.Join(errs...)
}

// handOver hands over one attachment.
func (a *attached) handOver(ctx context.Context, backend string) {
	if a.State == Gone || len(a.want) == 0 || !a.made && len(a.NotOurs) > 0 {
		if a.handed && a.State == "" {
			a.State = Before
		}
		return
	}
	w, release := a.hold(ctx)
	if w == nil {
		return
	}
	defer release()
	if w.Container == nil {
		return // it has nothing in the packet filter
	}
	failed := false
	for _, want := range a.want {
		h, made := plan.Unwrap(want).(plan.Resource)
		if !made {
			continue
		}
		to, lost, ok := reference.Handover(h, backend)
		if !ok {
			continue
		}
		if !a.handed {
			a.Lost = append(a.Lost, lost...)
		}
		if err := a.replace(ctx, w, h, to); err != nil {
			failed = true
			a.broken(fmt.Errorf("%v: %w", h, err))
		}
	}
	if failed {
		return
	}
	if !a.handed {
		a.Lost = append(a.Lost, a.refuse...)
	}
	switch {
	case a.handed:
		a.State, a.Repaired = Before, nil
	case a.r.DryRun:
		a.State = ToHand
	default:
		a.State = Handed
	}
	if !a.r.DryRun {
		a.broken(errors.Join(reference.ForgetHandedOver(w, a.Owner), restore.HandOver(w, a.Owner)))
	}
}

// refused returns why the reference's DEL will fail: it parses the whole configuration first, and removes nothing if
// that fails. Its version 1.7 knows isolated; no version knows strict.
func refused(t attach.Input) (lost []string) {
	type limits struct{ IngressRate, IngressBurst, EgressRate, EgressBurst uint64 }
	var c struct {
		limits
		IngressPolicy string
		RuntimeConfig struct{ Bandwidth limits }
	}
	if json.Unmarshal(t.Stdin, &c) != nil {
		return nil // this project accepted it; the reference's view is unknown
	}
	const what = ": the reference's DEL fails because of it%s; change it in the network's list before you install " +
		"the reference's programs (podman uses its cache: `fairlead del --continue`)"
	switch {
	case t.Conf.Type == "firewall" && c.IngressPolicy == policy.Strict:
		lost = append(lost, fmt.Sprintf("firewall: ingressPolicy strict"+what, ""))
	case t.Conf.Type == "firewall" && c.IngressPolicy == policy.Isolated:
		lost = append(lost, fmt.Sprintf("firewall: ingressPolicy isolated"+what, " before version 1.7"))
	case t.Conf.Type == "bandwidth":
		l := c.limits
		if l == (limits{}) {
			l = c.RuntimeConfig.Bandwidth
		}
		if (l.IngressRate == 0) != (l.IngressBurst == 0) {
			lost = append(lost, fmt.Sprintf("bandwidth: ingressRate or ingressBurst is missing"+what, ""))
		}
		if (l.EgressRate == 0) != (l.EgressBurst == 0) {
			lost = append(lost, fmt.Sprintf("bandwidth: egressRate or egressBurst is missing"+what, ""))
		}
	}
	return lost
}

// replace makes the reference's resources in place of one of Fairlead's, and then removes that.
func (a *attached) replace(ctx context.Context, w *kernel.World, ours plan.Resource, theirs plan.Plan) error {
	for _, r := range theirs {
		if !a.r.DryRun {
			if _, err := r.Ensure(ctx, w); err != nil {
				return err
			}
		}
		a.did(r.String())
	}
	if remover, ok := ours.(plan.Remover); ok && !a.r.DryRun && !reference.MatchesReference(ours) {
		return remover.Remove(ctx, w)
	}
	return nil
}
