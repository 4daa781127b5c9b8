package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
)

// repair restores the resources that have effect e. It waits for a runtime that attaches or detaches the container.
// After that, the runtime has made or removed everything itself.
func (a *attached) repair(ctx context.Context, e resource.Effect) {
	if a.State != "" {
		return
	}
	if e == resource.Opens && len(a.want) == 0 && a.known {
		a.verifyReference(ctx)
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
	a.fixing.Before = func() { a.before(ctx, w) }
	for _, r := range part {
		if _, rule := restore.EffectOf(r); rule {
			a.behind(ctx, w)
		}
		a.one(ctx, w, r)
	}
	a.behind(ctx, w)
}

// enter is hold, and checks that the attachment still exists.
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

// behind restores blocking rules a second time, if links were restored: rules that depend on a link could not be
// checked before.
func (a *attached) behind(ctx context.Context, w *kernel.World) {
	if !a.fixing.Fixed {
		return
	}
	a.fixing.Fixed = false
	for _, r := range a.part(resource.Closes) {
		a.one(ctx, w, r)
	}
}

// before records which rules are correct before a link is restored. Rules that are made again because of the link
// are then not reported, as a dry run would not find them.
func (a *attached) before(ctx context.Context, w *kernel.World) {
	if a.sound != nil {
		return
	}
	a.sound = map[string]bool{}
	for _, r := range a.want {
		if _, rule := restore.EffectOf(r); rule && r.Verify(ctx, w) == nil {
			a.sound[r.String()] = true
		}
	}
}

// without reports whether the container lacks its interface, because it deleted or renamed it, and says so as CHECK
// does. Then nothing is made for the attachment, because its addresses may belong to another container.
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
			a.differs(resource.Compared(r, r.Verify(ctx, w))...)
		}
	}
	if len(a.Differences) == 0 {
		a.broken(err)
	}
	return true
}

// hold locks the attachment and opens its namespaces, until release is called. If w is nil, nothing is locked, and
// the state of a says why. If the container has no namespace of its own, w has only the host's.
func (a *attached) hold(ctx context.Context) (w *kernel.World, release func()) {
	unlock, still, err := a.r.Runtime.Hold(ctx, a.cached)
	if err == nil && !still {
		a.State = Busy
	}
	if err != nil || !still {
		a.broken(err)
		return nil, nil
	}
	w, err = restore.OpenContainer(a.host, a.Owner, a.cached.Netns)
	switch {
	// for example loopback, or an attachment of an old library, which has no path
	case errors.Is(err, kernel.ErrHostNamespace):
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

// lost says that a namespace is gone, and whether another has its path.
func (a *attached) lost() string {
	there, err := a.host.Host.Enter(a.cached.Netns)
	if err != nil {
		return fmt.Sprintf("its network namespace %s is gone", a.cached.Netns)
	}
	there.Close()
	return fmt.Sprintf("its network namespace is gone, and another has the path %s", a.cached.Netns)
}

// part returns the resources that have an effect.
func (a *attached) part(want resource.Effect) (part plan.Plan) {
	for _, r := range a.want {
		if e, rule := restore.EffectOf(r); e == want && (rule || !a.r.Firewall) {
			part = append(part, r)
		}
	}
	return part
}

// alive fails if a part of the container is gone, for example after a DEL by a program that does not take Fairlead's
// locks.
func (a *attached) alive(w *kernel.World) error {
	if a.made && !restore.WasAttached(w, a.Owner) {
		return errors.New("it was deleted during the repair")
	}
	return nil
}

// one restores one resource, or records that it cannot be restored.
func (a *attached) one(ctx context.Context, w *kernel.World, r plan.Resource) {
	changed, wrong := a.fixing.One(ctx, w, r)
	if changed && !a.sound[r.String()] {
		a.did(r.String())
	}
	a.differs(wrong...)
}

// retract removes the rules of an attachment that was deleted during the repair. It waits for a DEL that still goes on.
// A program that does not take Fairlead's locks may be at work, so what the interface plugin recorded decides. An
// attachment that is being added again has a record of that from its beginning.
func (a *attached) retract(ctx context.Context) {
	if a.r.DryRun || !a.made || !a.rules || len(a.Repaired) == 0 {
		return
	}
	release, still, err := a.r.Runtime.Hold(ctx, a.cached)
	if err != nil {
		a.broken(err)
		return
	}
	if still {
		defer release()
	}
	if restore.WasAttached(a.host, a.Owner) {
		return
	}
	var mine plan.Plan
	for _, r := range a.want {
		if _, rule := restore.EffectOf(r); rule {
			mine = append(mine, r)
		}
	}
	if err := engine.Undo(ctx, a.host, mine); err != nil {
		a.broken(err)
		return
	}
	a.State, a.Repaired = Busy, nil
}

// awaitDel waits for a DEL of an attachment whose address another container has: the DEL may have given it back.
func (a *attached) awaitDel(ctx context.Context) {
	if !a.Held {
		return
	}
	release, still, err := a.r.Runtime.Hold(ctx, a.cached)
	switch {
	case err != nil:
		a.broken(err)
	case still:
		release()
	default:
		a.State, a.Held, a.Differences = Busy, false, nil
	}
}
