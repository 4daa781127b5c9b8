package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter/forward"
	"github.com/fairlead-cni/fairlead/resource/filter/policy"
	"github.com/fairlead-cni/fairlead/resource/reference"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// attached is an attachment while it is repaired.
type attached struct {
	Finding
	r      *Repairer
	host   *kernel.World
	cached *attach.Cached
	made   bool     // by an interface plugin of ours, in this boot
	handed bool     // made by ours, and the reference's since
	refuse []string // for what the reference's DEL will fail
	want   plan.Plan
	rules  bool // want has some

	theirs  plan.Plan // what the reference made of it in the packet filter, where that attached it
	offline []string  // … and is missing
	known   bool      // of whose plugins we know what they make

	guarded bool // it has rules, as far as that is known

	externals []external

	mending sdk.Mending
	sound   map[string]bool // rules that were as they should be before something that is no rule was mended
}

// plan finds out what should exist.
func (r *Repairer) plan(ctx context.Context, host *kernel.World, lists lookUp, c *attach.Cached) *attached {
	a := &attached{Finding: Finding{Owner: c.Owner(), Netns: c.Netns}, r: r, host: host, cached: c,
		mending: sdk.Mending{DryRun: r.DryRun}}
	switch {
	case c.Bare:
		a.broken(errNoConfig)
	case c.Gone():
		a.gone("%s", a.lost())
	case len(c.Left) > 0:
		a.State, a.Left = Broken, c.Left
		a.broken(fmt.Errorf("its DEL is not finished: %s failed, and its interface is gone",
			strings.Join(c.Left, ", ")))
	default:
		a.made, a.handed = sdk.WasAttached(host, a.Owner), sdk.HandedOver(host, a.Owner)
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
	told, args, err := a.r.Runtime.Told(l, a.cached)
	if err != nil {
		return err
	}
	links, err := sdk.LookUp(a.host, a.Owner, a.cached.Netns, a.cached.Result)
	if err != nil {
		return err
	}
	theirs := "" // why all plugins of ours are not ours for this attachment
	for n, t := range told {
		i := slices.IndexFunc(a.r.Plugins, func(p sdk.Plugin) bool { return p.Name == t.Conf.Type })
		why := "no plugin of fairlead"
		if i >= 0 {
			why = ""
			if !a.made && a.r.Foreign != nil {
				why = a.r.Foreign(l, t.Conf.Type)
			}
			if why == "" && n == 0 && a.others(a.r.Plugins[i]) {
				theirs = "another program attached it, whose rules these are"
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
				a.reference(a.r.Plugins[i], t, args, links)
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
		told := sdk.Attached{Owner: a.Owner, Netns: a.cached.Netns, Args: args, Conf: conf, Links: links}
		p := a.r.Plugins[i]
		switch err := p.Leases(ctx, a.r.Plugins, told); {
		case errors.Is(err, ipam.ErrHeld):
			a.gone("%v", err)
			a.want, a.Held = nil, true
			return nil
		case !a.r.Firewall: // a lease that nobody has is missing, and the container lives
			a.broken(err)
		}
		want, err := p.Wanted(told)
		if err != nil {
			return fmt.Errorf("plugin %s: %w", t.Conf.Type, err)
		}
		a.want = append(a.want, want...)
	}
	a.rules = slices.ContainsFunc(a.want, func(r plan.Resource) bool { _, rule := sdk.EffectOf(r); return rule })
	return nil
}

// reference adds what the reference makes of a plugin's part in iptables, as far as that is known.
func (a *attached) reference(p sdk.Plugin, t attach.Told, args [][2]string, links sdk.Links) {
	conf, err := spec.ParseConf(t.Stdin)
	if err != nil {
		return
	}
	want, err := p.Wanted(sdk.Attached{Owner: a.Owner, Netns: a.cached.Netns, Args: args, Conf: conf, Links: links})
	if err != nil {
		return
	}
	a.known = true
	for _, r := range want {
		r = plan.Unwrap(r)
		if reference.Theirs(r) {
			a.theirs = append(a.theirs, r)
			continue
		}
		to, _, _ := reference.Handover(r, forward.IPTables)
		a.theirs = append(a.theirs, to...)
	}
}

// verifyTheirs finds out what the reference made of the attachment, and is missing. Of what it made in nf_tables
// nothing is told.
func (a *attached) verifyTheirs(ctx context.Context) {
	w, release := a.hold(ctx)
	if w == nil {
		return
	}
	defer release()
	if !a.r.Firewall {
		a.offline = LinksOff(w, a.cached)
	}
	if there, err := reference.InNFT(w); there || err != nil {
		return
	}
	for _, r := range a.theirs {
		wrong := sdk.Wrong{Resource: r.String()}
		for _, line := range sdk.Lines(r.Verify(ctx, w)) {
			// else it is ours, or could not be asked
			if strings.HasPrefix(line, "rule ") && strings.HasSuffix(line, " is missing") {
				wrong.What = append(wrong.What, line)
				a.offline = append(a.offline, wrong.Resource+": "+line)
			}
		}
		if len(wrong.What) > 0 {
			a.Wrong = append(a.Wrong, wrong)
		}
	}
}

// others reports whether the plugin p that a list begins with is ours now, and was another's when it attached: the
// programs were exchanged since.
func (a *attached) others(p sdk.Plugin) bool {
	return !a.made && !a.handed && p.MakesLinks() && !tagged(a.host, a.cached)
}

// Whose is Foreign for what another program attached, Handed for what was handed over to one, and else nothing, of an
// attachment whose list begins with the plugin p.
func Whose(c *attach.Cached, p sdk.Plugin) (State, error) {
	host, err := sdk.OpenHost()
	if err != nil {
		return "", err
	}
	defer host.Close()
	a := &attached{host: host, cached: c, made: sdk.WasAttached(host, c.Owner()),
		handed: sdk.HandedOver(host, c.Owner())}
	switch {
	case a.handed:
		return Handed, nil
	case a.others(p):
		return Foreign, nil
	}
	return "", nil
}

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

func (a *attached) did(text string) {
	if !slices.Contains(a.Repaired, text) {
		a.Repaired = append(a.Repaired, text)
	}
}

func (a *attached) gone(format string, args ...any) {
	a.State = Gone
	a.Drift = []string{fmt.Sprintf(format, args...)}
}

func (a *attached) broken(err error) {
	for _, line := range sdk.Lines(err) {
		if !slices.Contains(a.Drift, line) {
			a.Drift = append(a.Drift, line)
		}
	}
}

// planned takes down what there should be.
func (a *attached) planned(p plan.Plan, theirs bool) {
	for _, r := range p {
		_, rule := sdk.EffectOf(r)
		a.Plan = append(a.Plan, sdk.Planned{Resource: r.String(), Kind: sdk.KindName(r), Rule: rule || theirs,
			Theirs: theirs})
	}
}

// finding is what came of it.
func (a *attached) finding() Finding {
	if a.r.DryRun {
		said := a.Plan // by plugins of other programs
		a.Plan = nil
		a.planned(a.want, false)
		a.planned(a.theirs, true)
		a.Plan = append(a.Plan, said...)
	}
	switch {
	case a.State != "":
	case len(a.Drift) > 0:
		a.State = Broken
		lines := 0
		for _, w := range a.Wrong {
			if w.Mends {
				lines += len(w.What)
			}
		}
		if lines == len(a.Drift) {
			a.State = ToRepair
		}
	case len(a.Repaired) > 0:
		a.State = Repaired
	case len(a.want)+len(a.externals) == 0 && len(a.NotOurs) > 0:
		if a.State = Foreign; len(a.offline) > 0 {
			a.State, a.Drift = Offline, a.offline
		}
	default:
		a.State = InOrder
	}
	return a.Finding
}

// needsGuard reports whether a resource has something in our tables: others' are no concern of filter.Guard's.
func needsGuard(r plan.Resource) bool {
	switch plan.Unwrap(r).(type) {
	case forward.Forward, policy.IngressIPTables:
		return false
	}
	is := resource.TraitsOf(r)
	return is.Effect != resource.NoRule && !is.Clears
}
