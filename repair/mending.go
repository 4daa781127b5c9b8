package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/sdk"
)

// repair makes what has an effect. Whoever attaches or detaches the container is waited for, and whoever has
// done so in the meantime has seen to everything.
func (a *attached) repair(ctx context.Context, e resource.Effect) {
	if a.State != "" {
		return
	}
	if e == resource.Opens && len(a.want) == 0 && a.known {
		a.verifyTheirs(ctx)
		return
	}
	part := a.part(e)
	if len(part) == 0 {
		return
	}
	w, release := a.enter(ctx)
	if w == nil {
		return
	}
	defer release()
	a.mending.Before = func() { a.before(ctx, w) }
	for _, r := range part {
		if _, rule := sdk.EffectOf(r); rule {
			a.behind(ctx, w)
		}
		a.one(ctx, w, r)
	}
	a.behind(ctx, w)
}

// enter is hold, and finds what is to be repaired alive.
func (a *attached) enter(ctx context.Context) (w *kernel.World, release func()) {
	w, release = a.hold(ctx)
	if w == nil {
		return nil, nil
	}
	if err := a.alive(w); err != nil {
		a.gone("%v", err)
	} else if !a.without(ctx, w) {
		return w, release
	}
	release()
	return nil, nil
}

// behind makes what keeps packets out once more where links were mended: what stands on these could not be told before.
func (a *attached) behind(ctx context.Context, w *kernel.World) {
	if !a.mending.Mended {
		return
	}
	a.mending.Mended = false
	for _, r := range a.part(resource.Closes) {
		a.one(ctx, w, r)
	}
}

// before remembers which rules are as they should be before a link is mended. What is made of these afterwards follows
// from the link, and is not said by itself: a dry run would not have found it.
func (a *attached) before(ctx context.Context, w *kernel.World) {
	if a.sound != nil {
		return
	}
	a.sound = map[string]bool{}
	for _, r := range a.want {
		if _, rule := sdk.EffectOf(r); rule && r.Verify(ctx, w) == nil {
			a.sound[r.String()] = true
		}
	}
}

// without says, in the words of CHECK, that the container has not the interface that it was given: it has deleted it,
// or calls it otherwise. Then nothing is made for it, for who has its addresses is not known.
func (a *attached) without(ctx context.Context, w *kernel.World) bool {
	if w.Container == nil {
		return false
	}
	_, err := rtnl.LinkByName(w.Container, a.Owner.IfName)
	if !errors.Is(err, rtnl.ErrNoLink) {
		return false
	}
	a.State = Broken
	own := func(f resource.Iface) bool { return f.Where == resource.Container && f.Name == a.Owner.IfName }
	for _, r := range a.want {
		if slices.ContainsFunc(resource.TraitsOf(r).Ifaces, own) {
			wrong := sdk.Wrong{Resource: r.String(), Kind: sdk.KindName(r), What: sdk.Lines(r.Verify(ctx, w))}
			for _, line := range wrong.What {
				a.broken(fmt.Errorf("%v: %s", r, line))
			}
			a.Wrong = append(a.Wrong, wrong)
		}
	}
	if len(a.Drift) == 0 {
		a.broken(err)
	}
	return true
}

// hold keeps others away from the attachment and opens its namespaces, until release is called. Without a world,
// nothing is held and a says why. Where the container has no namespace of its own, the world has none.
func (a *attached) hold(ctx context.Context) (w *kernel.World, release func()) {
	unlock, still, err := a.r.Runtime.Hold(ctx, a.cached)
	if err == nil && !still {
		a.State = Busy
	}
	if err != nil || !still {
		a.broken(err)
		return nil, nil
	}
	w, err = sdk.OpenContainer(a.host, a.Owner, a.cached.Netns)
	switch {
	case a.cached.Netns == "" || errors.Is(err, kernel.ErrHostNamespace): // of loopback, say, or of an old library's
		return &kernel.World{Host: a.host.Host, Store: a.host.Store}, unlock
	case err == nil:
		return w, func() { w.Container.Close(); unlock() }
	case errors.Is(err, kernel.ErrNoNamespace) && !kernel.Hidden(a.cached.Netns, err):
		a.gone("%s", a.lost())
	default:
		a.broken(err)
	}
	unlock()
	return nil, nil
}

// lost says of a namespace that is gone whether another is at its path.
func (a *attached) lost() string {
	there, err := kernel.Open(a.cached.Netns)
	if err != nil {
		return fmt.Sprintf("its network namespace %s is gone", a.cached.Netns)
	}
	there.Close()
	return fmt.Sprintf("its namespace %s is no more, and another is there", a.cached.Netns)
}

// part are the resources with an effect.
func (a *attached) part(want resource.Effect) (part plan.Plan) {
	for _, r := range a.want {
		if e, rule := sdk.EffectOf(r); e == want && (rule || !a.r.Firewall) {
			part = append(part, r)
		}
	}
	return part
}

// alive says what of the container's is gone, as after a DEL by a program that knows nothing of our locks.
func (a *attached) alive(w *kernel.World) error {
	if a.made && !sdk.WasAttached(w, a.Owner) {
		return errors.New("it was deleted meanwhile")
	}
	return nil
}

// one makes one resource as it should be, or says what cannot be mended.
func (a *attached) one(ctx context.Context, w *kernel.World, r plan.Resource) {
	changed, wrong, err := a.mending.One(ctx, w, r)
	if changed && !a.sound[r.String()] {
		a.did(r.String())
	}
	for _, line := range sdk.Lines(err) {
		a.broken(fmt.Errorf("%v: %s", r, line))
	}
	a.Wrong = append(a.Wrong, wrong...)
}

// retract takes back the rules of an attachment whose DEL ran meanwhile, of a program that knows nothing of our
// locks. One that is being attached again has a record of that from the first moment.
func (a *attached) retract(ctx context.Context) {
	if a.r.DryRun || !a.made || !a.rules || len(a.Repaired) == 0 || sdk.WasAttached(a.host, a.Owner) {
		return
	}
	var mine plan.Plan
	for _, r := range a.want {
		if _, rule := sdk.EffectOf(r); rule {
			mine = append(mine, r)
		}
	}
	if err := mine.Remove(ctx, a.host); err != nil {
		a.broken(err)
		return
	}
	a.State, a.Repaired = Busy, nil
}
