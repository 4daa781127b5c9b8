package sdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
)

// A Wrong is a resource that is not as it should be.
type Wrong struct {
	Resource string   `json:"resource"`          // in the words of ip(8) and nft(8)
	Kind     string   `json:"kind,omitempty"`    // of the resource, as its type is called: Bridge, Veth, Gateway, …
	Rule     bool     `json:"rule,omitempty"`    // it is one of the packet filter
	Follows  bool     `json:"follows,omitempty"` // what is wrong with it follows from what is wrong with links
	What     []string `json:"what"`              // is wrong with it
	Mends    bool     `json:"mends,omitempty"`   // in a dry run: repair would mend it
}

// A Mending mends resources of one attachment, whose container lives, one after the other in the order of the plan.
type Mending struct {
	DryRun bool   // only look
	Before func() // called before a resource is mended that is no rule of the packet filter; nil is nothing

	Mended bool // a resource that is no rule was mended; whoever goes on from there may reset it

	linksMend, linksStay bool // something is wrong with links that is mended, or that is not
}

// One makes one resource as it should be. Changed is whether it had to; err is what is wrong with it all the same, and
// wrong says that by what a dry run would mend, and what it would not.
func (m *Mending) One(ctx context.Context, w *kernel.World, r plan.Resource) (changed bool, wrong []Wrong, err error) {
	_, rule := EffectOf(r)
	is := resource.TraitsOf(r)
	can := is.Mend != nil && len(plan.Plan{r}.Required()) == 0
	switch {
	case m.DryRun || !rule && !can:
		err = r.Verify(ctx, w)
	case rule:
		changed, err = r.Ensure(ctx, w)
	default:
		if err = r.Verify(ctx, w); err != nil {
			if m.Before != nil {
				m.Before()
			}
			if changed, err = is.Mend(ctx, w); err == nil {
				err = r.Verify(ctx, w)
			}
			m.Mended = m.Mended || changed
		}
	}
	if err == nil {
		return changed, nil, nil
	}
	hopeless := Wrong{Resource: r.String(), Kind: KindName(r), Rule: rule, Follows: is.Follows}
	mends := hopeless
	mends.Mends = true
	for _, e := range parts(err) {
		line := e.Error()
		if slices.Contains(mends.What, line) || slices.Contains(hopeless.What, line) {
			continue
		}
		would := (rule || can && !strings.Contains(line, "cont/")) && !errors.As(e, new(resource.Beyond))
		switch {
		case is.Follows:
			would = m.linksMend && !m.linksStay
		case len(is.Ifaces) > 0:
			m.linksMend, m.linksStay = m.linksMend || would, m.linksStay || !would
		}
		if m.DryRun && would {
			mends.What = append(mends.What, line)
		} else {
			hopeless.What = append(hopeless.What, line)
		}
	}
	for _, w := range []Wrong{mends, hopeless} {
		if len(w.What) > 0 {
			wrong = append(wrong, w)
		}
	}
	return changed, wrong, err
}

// EffectOf is when a resource of a plan is repaired, and whether it is of the packet filter. What is none of its
// rules is mended after all of them.
func EffectOf(p plan.Resource) (e resource.Effect, rule bool) {
	if e = resource.TraitsOf(p).Effect; e != resource.NoRule {
		return e, true
	}
	return resource.Opens, false
}

// KindName is the name of a resource's type, without the package that it is in.
func KindName(r plan.Resource) string {
	name := fmt.Sprintf("%T", plan.Unwrap(r))
	return name[strings.LastIndexByte(name, '.')+1:]
}

// Lines are the lines of an error: one for each error that it joins.
func Lines(err error) (lines []string) {
	for _, e := range parts(err) {
		lines = append(lines, e.Error())
	}
	return lines
}

// parts are the errors that err joins, as errors.Join does. One that says more than its causes is one.
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
