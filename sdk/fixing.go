package sdk

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
)

// A Wrong is a resource that differs from its description.
type Wrong struct {
	Resource string   `json:"resource"`          // in the words of ip(8) and nft(8)
	Kind     string   `json:"kind,omitempty"`    // of the resource, as its type is called: Bridge, Veth, Gateway, …
	Rule     bool     `json:"rule,omitempty"`    // it is one of the packet filter
	Follows  bool     `json:"follows,omitempty"` // what is wrong with it follows from what is wrong with links
	What     []string `json:"what"`              // is wrong with it
	Fixes    bool     `json:"fixes,omitempty"`   // in a dry run: repair would fix it
}

// A Fixing repairs the resources of one attachment whose container is alive, one after the other in the order of the
// plan.
type Fixing struct {
	DryRun bool      // only look
	Shared *Verified // of a dry run; nil verifies each resource for each attachment
	Before func()    // called before a resource is fixed that is no rule of the packet filter; nil is nothing

	Fixed bool // a resource that is no rule was fixed; whoever goes on from there may reset it

	linksFix, linksStay bool // something is wrong with links that is fixed, or that is not
}

// One repairs one resource. Changed reports whether a repair was necessary. Err describes what is still wrong
// afterwards; wrong lists the same, separated into what a repair would correct (in a dry run) and what it would not.
func (m *Fixing) One(ctx context.Context, w *kernel.World, r plan.Resource) (changed bool, wrong []Wrong, err error) {
	_, rule := EffectOf(r)
	is := resource.TraitsOf(r)
	can := is.Fix != nil && len(plan.Plan{r}.Required()) == 0
	switch {
	case m.DryRun:
		err = m.Shared.verify(ctx, w, r)
	case !rule && !can:
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
	if err == nil {
		return changed, nil, nil
	}
	hopeless := Wrong{Resource: r.String(), Kind: KindName(r), Rule: rule, Follows: is.Follows}
	fixes := hopeless
	fixes.Fixes = true
	for _, e := range parts(err) {
		line := e.Error()
		if slices.Contains(fixes.What, line) || slices.Contains(hopeless.What, line) {
			continue
		}
		would := (rule || can && !strings.Contains(line, "cont/")) && !errors.As(e, new(resource.Beyond))
		switch {
		case is.Follows:
			would = m.linksFix && !m.linksStay
		case len(is.Ifaces) > 0:
			m.linksFix, m.linksStay = m.linksFix || would, m.linksStay || !would
		}
		if m.DryRun && would {
			fixes.What = append(fixes.What, line)
		} else {
			hopeless.What = append(hopeless.What, line)
		}
	}
	for _, w := range []Wrong{fixes, hopeless} {
		if len(w.What) > 0 {
			wrong = append(wrong, w)
		}
	}
	return changed, wrong, err
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
	if v == nil || !plan.IsShared(r) {
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

// KindName returns the name of a resource's type without its package.
func KindName(r plan.Resource) string {
	name := fmt.Sprintf("%T", plan.Unwrap(r))
	return name[strings.LastIndexByte(name, '.')+1:]
}

// Lines returns the messages of the errors that err joins.
func Lines(err error) (lines []string) {
	for _, e := range parts(err) {
		lines = append(lines, e.Error())
	}
	return lines
}

// parts returns the errors that err joins, as errors.Join does. An error whose message says more than its causes counts
// as one.
func parts(err error) (all []error) {
	if err == nil {
		return nil
	}
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	if joined := errors.Join(many.Unwrap()...); joined == nil || joined.Error() != err.Error() {
		return []error{err}
	}
	for _, e := range many.Unwrap() {
		all = append(all, parts(e)...)
	}
	return all
}
