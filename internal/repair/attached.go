package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// attached is an attachment during its repair.
type attached struct {
	Finding
	r      *Repairer
	host   *kernel.World
	cached *attach.Cached
	made   bool     // attached by an interface plugin of this project, in this boot
	handed bool     // made by this project, then handed over to the reference
	refuse []string // why the reference's DEL will fail
	want   plan.Plan
	rules  bool // want contains rules

	ofReference plan.Plan        // what the reference plugins made in the packet filter, if they made the attachment
	offline     spec.Differences // the part of theirs that is missing
	known       bool             // the plan of its plugins is known

	guarded bool // it has rules, as far as that is known

	externals []external

	fixing restore.Fixing
	sound  map[string]bool // rules that were correct before something other than a rule was restored
}

// plan computes what should exist.
func (r *Repairer) plan(ctx context.Context, host *kernel.World, lists lookUp, c *attach.Cached) *attached {
	a := &attached{Finding: Finding{Owner: c.Owner(), Netns: c.Netns, Args: c.Args}, r: r, host: host, cached: c,
		fixing: restore.Fixing{DryRun: r.DryRun, Shared: r.shared}}
	switch {
	case c.Bare:
		a.broken(errNoConfig)
	case c.Gone():
		a.gone("%s", a.lost())
	case len(c.Left) > 0:
		a.State, a.Left = Broken, c.Left
		a.broken(fmt.Errorf("its DEL is not finished: %s failed after the interface was removed",
			strings.Join(c.Left, ", ")))
	default:
		a.made, a.handed = restore.WasAttached(host, a.Owner), restore.HandedOver(host, a.Owner)
		if a.handed && r.backend == "" {
			a.State = Handed
			return a
		}
		err := a.plugins(ctx, lists)
		a.broken(err)
		a.guarded = err != nil && a.made || slices.ContainsFunc(a.want, needsGuard)
	}
	return a
}

func (a *attached) plugins(ctx context.Context, lists lookUp) error {
	l, changed, err := lists(a.cached)
	a.Changed = changed
	if err != nil {
		return err
	}
	inputs, args, err := a.r.Runtime.Inputs(l, a.cached)
	if err != nil {
		return err
	}
	at := &sdk.Attached{Host: a.host, Owner: a.Owner, Netns: a.cached.Netns, Args: args, Result: a.cached.Result,
		Allocators: a.r.Plugins}
	theirs := "" // why no plugin counts as ours for this attachment
	for n, t := range inputs {
		i := slices.IndexFunc(a.r.Plugins, func(p sdk.Plugin) bool { return p.Name == t.Conf.Type })
		why := "not a plugin of fairlead"
		if i >= 0 {
			why = a.foreign(l, t.Conf.Type)
			if why == "" && n == 0 && a.others(a.r.Plugins[i]) {
				theirs = "another program made the attachment and owns its rules"
			}
			why = cmp.Or(why, theirs)
		}
		if why != "" && a.r.External != nil && a.r.backend == "" {
			if x := a.r.External(ctx, l, t.Conf.Type); x.Repairs() {
				a.externals = append(a.externals, external{x, t, args})
				continue
			}
		}
		if why != "" {
			a.NotOurs = append(a.NotOurs, t.Conf.Type+": "+why)
			if i >= 0 {
				a.reference(ctx, a.r.Plugins[i], t, *at)
			}
			continue
		}
		conf, err := spec.ParseConf(t.Stdin)
		if err != nil {
			return fmt.Errorf("plugin %s: %w", t.Conf.Type, err)
		}
		if a.r.backend != "" {
			a.refuse = append(a.refuse, refused(t)...)
		}
		is, err := a.r.Plugins[i].Standing(ctx, at, conf)
		switch {
		case errors.Is(is.Leases, ipam.ErrHeld):
			a.gone("%v", is.Leases)
			a.want, a.Held = nil, true
			return nil
		case !a.r.Firewall: // the container lives, but its lease is missing
			a.broken(is.Leases)
		}
		if err != nil {
			return fmt.Errorf("plugin %s: %w", t.Conf.Type, err)
		}
		a.want = append(a.want, is.Plan...)
	}
	a.rules = slices.ContainsFunc(a.want, func(r plan.Resource) bool { _, rule := restore.EffectOf(r); return rule })
	return nil
}

// foreign says why a plugin's part of the list is not ours, of an attachment that ours did not make.
func (a *attached) foreign(l *spec.List, plugin string) string {
	if a.made || a.r.Foreign == nil {
		return ""
	}
	return a.r.Foreign(l, plugin)
}

func (a *attached) did(text string) {
	if !slices.Contains(a.Repaired, text) {
		a.Repaired = append(a.Repaired, text)
	}
}

func (a *attached) gone(format string, args ...any) {
	a.State = Gone
	a.Differences = spec.Differences{{Text: fmt.Sprintf(format, args...)}}
}

func (a *attached) broken(err error) {
	a.differs(spec.DifferencesIn(err)...)
}

func (a *attached) differs(found ...spec.Difference) {
	a.Differences = restore.Unique(append(a.Differences, found...))
}

// finding returns the outcome for the attachment.
func (a *attached) finding() Finding {
	if a.r.DryRun {
		said := a.Plan // by plugins of other projects
		a.Plan = slices.Concat(restore.PlannedOf(a.want, false), restore.PlannedOf(a.ofReference, true), said)
	}
	switch {
	case a.State != "":
	case len(a.Differences) > 0:
		stays := func(d spec.Difference) bool { return d.Repair != spec.ByRepair }
		if a.State = ToRepair; slices.ContainsFunc(a.Differences, stays) {
			a.State = Broken
		}
	case len(a.Repaired) > 0:
		a.State = Repaired
	case len(a.want)+len(a.externals) == 0 && len(a.NotOurs) > 0:
		if a.State = Foreign; len(a.offline) > 0 {
			a.State, a.Differences = Offline, a.offline
		}
	default:
		a.State = InOrder
	}
	return a.Finding
}

// needsGuard reports whether a resource has something in Fairlead's tables: filter.Guard protects nothing else.
func needsGuard(r plan.Resource) bool {
	switch plan.Unwrap(r).(type) {
	case forward.Forward, policy.IngressIPTables:
		return false
	}
	is := resource.TraitsOf(r)
	return is.Effect != resource.NoRule && !is.Clears
}
