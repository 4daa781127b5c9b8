package restore

import (
	"context"
	"reflect"
	"sync"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Fixing repairs the resources of one attachment whose container is alive, one after the other in the order of the
// plan.
type Fixing struct {
	DryRun bool      // only look
	Shared *Verified // of a dry run; nil verifies each resource for each attachment
	Before func()    // called before a resource is fixed that is no rule of the packet filter; nil is nothing

	Fixed bool // a resource that is no rule was fixed; the caller goes on from there and may reset it

	linksFix, linksStay bool // something is wrong with links that is fixed, or that is not
}

// One repairs one resource. Changed reports whether a repair was necessary. Wrong is what is still wrong afterwards,
// first what a repair would correct, which is only left in a dry run.
func (m *Fixing) One(ctx context.Context, w *kernel.World, r plan.Resource) (changed bool, wrong spec.Differences) {
	is := resource.TraitsOf(r)
	_, rule := EffectOf(r)
	fixable := is.Fix != nil && len(plan.Plan{r}.Required()) == 0
	var err error
	switch {
	case m.DryRun:
		err = m.Shared.verify(ctx, w, r)
	case !rule && !fixable:
		err = r.Verify(ctx, w)
	case rule:
		changed, err = r.Ensure(ctx, w)
	default:
		if err = r.Verify(ctx, w); err != nil {
			if m.Before != nil {
				m.Before()
			}
			if changed, err = is.Fix(ctx, w); err == nil {
				err = r.Verify(ctx, w)
			}
			m.Fixed = m.Fixed || changed
		}
	}
	var stays spec.Differences
	for _, d := range resource.Compared(r, err) {
		restored := (rule || fixable) && d.Repair != spec.ByAttach && d.Repair != spec.ByHand
		switch {
		case is.Follows:
			restored = m.linksFix && !m.linksStay
		case len(is.Ifaces) > 0:
			m.linksFix, m.linksStay = m.linksFix || restored, m.linksStay || !restored
		}
		if m.DryRun && restored {
			d.Repair = spec.ByRepair
			wrong = append(wrong, d)
			continue
		}
		if d.Repair != spec.ByHand {
			d.Repair = spec.ByAttach
		}
		stays = append(stays, d)
	}
	return changed, Unique(append(wrong, stays...))
}

// Unique returns the differences without those that say the same as one before.
func Unique(all spec.Differences) (once spec.Differences) {
	said := map[string]bool{}
	for _, d := range all {
		if text := d.Error(); !said[text] {
			said[text] = true
			once = append(once, d)
		}
	}
	return once
}

// Verified keeps the outcomes of resources that the plans of many attachments share, such as their bridge. In a dry run
// nothing changes them, so each is verified once. It may be used concurrently.
type Verified struct {
	mu  sync.Mutex
	all map[string][]outcome // by description
}

// outcome verifies a resource on its first call, and then returns the same again.
type outcome struct {
	of  plan.Resource
	err func() error
}

// verify verifies r. All attachments are of one host, and a resource that they share is the host's.
func (v *Verified) verify(ctx context.Context, w *kernel.World, r plan.Resource) error {
	if v == nil || len(plan.Plan{r}.Shared()) == 0 {
		return r.Verify(ctx, w)
	}
	return v.outcome(r, func() error { return r.Verify(ctx, w) })()
}

func (v *Verified) outcome(r plan.Resource, verify func() error) func() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	text := r.String()
	for _, o := range v.all[text] {
		if reflect.DeepEqual(o.of, r) {
			return o.err
		}
	}
	if v.all == nil {
		v.all = map[string][]outcome{}
	}
	o := outcome{r, sync.OnceValue(verify)}
	v.all[text] = append(v.all[text], o)
	return o.err
}

// EffectOf returns when a resource is repaired, and whether it is a rule of the packet filter. All other resources are
// repaired after the rules.
func EffectOf(p plan.Resource) (e resource.Effect, rule bool) {
	if e = resource.TraitsOf(p).Effect; e != resource.NoRule {
		return e, true
	}
	return resource.Opens, false
}

// A Planned is one resource of an attachment's plan.
type Planned struct {
	Resource  string `json:"resource"`         // in the words of ip(8) and nft(8)
	Kind      string `json:"kind,omitempty"`   // as its type is called
	Rule      bool   `json:"rule,omitempty"`   // it is one of the packet filter
	Reference bool   `json:"theirs,omitempty"` // the reference plugins made it
}

// PlannedOf returns the resources of a plan, without those that only remove what an earlier configuration wanted.
func PlannedOf(want plan.Plan, theirs bool) []Planned {
	all := []Planned{}
	for _, r := range want {
		if resource.TraitsOf(r).Clears {
			continue
		}
		_, rule := EffectOf(r)
		all = append(all, Planned{Resource: r.String(), Kind: resource.TypeName(r), Rule: rule || theirs,
			Reference: theirs})
	}
	return all
}
