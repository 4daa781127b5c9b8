package sdk

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
)

// A call is one call of one plugin.
type call struct {
	*site
	p    Plugin
	conf *spec.Conf
	env  environment
	r    *Request
	ipam delegate // nil: no IPAM is configured
	dns  spec.DNS

	ask     func(*Request) (Answer, error) // the plan function with its configuration; nil: not decoded yet
	planned Answer                         // what it answered last
	said    []string                       // what it warned of
}

// want calls the plan function, and reports unknown keys of the configuration once.
func (c *call) want() (plan.Plan, error) {
	if c.ask == nil {
		ask, unknown, err := c.p.plan(c.conf, c.r)
		if err == nil {
			err = report(c.conf, c.r.verb, append(unknown, c.p.unread(c.conf)...))
		}
		if err != nil {
			return nil, err
		}
		c.ask = ask
	}
	var err error
	c.planned, err = c.ask(c.r)
	for _, w := range c.planned.Warnings {
		if c.r.verb == "ADD" && !slices.Contains(c.said, w) {
			c.said = append(c.said, w)
			slog.Warn(w, "network", c.conf.Name, "plugin", c.conf.Type)
		}
	}
	return c.planned.Plan, err
}

// report warns about unknown keys, or refuses them if the configuration sets "strict".
func report(conf *spec.Conf, verb string, unknown []unknownKey) error {
	if removes(verb) {
		return nil
	}
	if err := refuse(conf, unknown); err != nil {
		return err
	}
	if verb == "ADD" {
		for _, u := range unknown {
			slog.Warn(u.String(), "network", conf.Name, "plugin", conf.Type)
		}
	}
	return nil
}

// refuse returns an error for each unknown key of a configuration that sets "strict".
func refuse(conf *spec.Conf, unknown []unknownKey) error {
	raw, ok := conf.Object.Get("strict")
	if !ok || string(raw) != "true" {
		return nil
	}
	var errs []error
	for _, u := range unknown {
		errs = append(errs, u.refused())
	}
	return errors.Join(errs...)
}

// add makes the attachment. If it fails, it rolls back everything that it changed.
func (c *call) add(ctx context.Context) (res *spec.Result, failed error) {
	if !c.r.L3 && !c.p.observe && c.p.role == makesLinks && !c.r.Version.AtLeast(spec.V030) {
		return nil, spec.Errorf(spec.CodeConfig,
			"cniVersion %s has no form for a result without an address: configure ipam, or use 0.3.0 or newer",
			c.r.Version)
	}
	if err := c.openWorld(); err != nil {
		return nil, err
	}
	if c.r.InContainer() || len(c.r.hostSide()) > 0 {
		if err := c.lookUpHostLinks(); err != nil {
			return nil, err
		}
	}
	want, err := c.want()
	if err != nil {
		return nil, err
	}
	if err := c.addressable(); err != nil {
		return nil, err
	}
	tx := engine.Begin(c.w)
	restore := c.forget
	defer func() {
		if failed != nil {
			undo, stop := undoing(ctx)
			defer stop()
			failed = errors.Join(failed, tx.Rollback(undo), restore())
		}
	}()
	if c.p.role == makesLinks {
		if restore, err = c.remember(); err != nil {
			return nil, err
		}
	}
	if err := tx.Apply(ctx, want); err != nil {
		return nil, err
	}
	if c.ipam != nil {
		got, err := c.ipam.add(ctx)
		if err != nil {
			return nil, err
		}
		defer func() {
			if failed != nil { // the addresses go back before the links do, which dhcp needs
				undo, stop := undoing(ctx)
				defer stop()
				failed = errors.Join(failed, c.giveBack(undo, failed))
			}
		}()
		if want, err = c.readdress(ctx, tx, got); err != nil {
			return nil, err
		}
	}
	return c.result(ctx, want)
}

// giveBack releases the addresses of an ADD that failed. An address that turned out to belong to another machine is not
// allocated for the same sticky key again.
func (c *call) giveBack(ctx context.Context, failed error) error {
	var t addr.Taken
	if i, ok := c.ipam.(inside); ok && errors.As(failed, &t) {
		if d, ok := i.Allocator.(ipam.Decliner); ok {
			return d.Decline(ctx, c.r.Owner, t.Addr)
		}
	}
	return c.ipam.del(ctx)
}

// undoing returns the context for a roll-back. It ignores signals but ends after a while, because a delegate or the
// holder of a lock may hang. The DEL that runtimes send after a failed ADD removes the rest.
func undoing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// readdress applies the plan for the addresses that the allocator gave.
func (c *call) readdress(ctx context.Context, tx *engine.Tx, got *spec.Result) (plan.Plan, error) {
	if len(got.IPs) == 0 {
		return nil, spec.Errorf(spec.CodeConfig, "ipam: %s gave no address", c.conf.IPAMType)
	}
	c.r.IPs, c.r.Routes, c.dns = got.IPs, got.Routes, got.DNS
	want, err := c.want()
	if err != nil {
		return nil, err
	}
	return want, tx.Apply(ctx, want)
}

// check verifies the attachment and joins all differences.
func (c *call) check(ctx context.Context) error {
	if err := c.openWorld(); err != nil {
		return err
	}
	if err := c.lookUpHostLinks(); err != nil {
		return err
	}
	c.r.Ranges = c.r.ranges
	want, err := c.want()
	if err != nil {
		return err
	}
	var errs []error
	if c.p.role == makesLinks && !c.p.observe && c.r.prevInterface() < 0 {
		errs = append(errs, spec.DiffersBy("prevResult", "prevResult has no interface %s with a sandbox", c.r.IfName))
	}
	errs = append(errs, verify(ctx, want, c.w).Err())
	if c.ipam != nil {
		errs = append(errs, c.ipam.check(ctx))
	}
	return errors.Join(errs...)
}

// del removes the attachment and then releases its addresses, because something that could not be removed still has
// them. Objects that no longer exist are not an error.
func (c *call) del(ctx context.Context) error {
	if err := c.openHost(); err != nil {
		return err
	}
	if err := c.openContainerForDel(); err != nil {
		return err
	}
	var errs []error
	release := func() {
		if c.ipam != nil {
			errs = append(errs, c.ipam.del(ctx))
		}
	}
	if c.ipam != nil && c.ipam.needsLink() {
		release()
	}
	t := plan.TagOf(c.r.Owner)
	t.Prev = c.r.Prev
	left := engine.Remove(ctx, c.w, c.p.Kinds(c.conf), t)
	if errs = append(errs, left); left == nil && c.ipam != nil && !c.ipam.needsLink() {
		release()
	}
	if errors.Join(errs...) == nil {
		errs = append(errs, c.forget())
	}
	return errors.Join(errs...)
}

// gc removes what belongs to the network and to no valid attachment.
func (c *call) gc(ctx context.Context) error {
	if err := c.openHost(); err != nil {
		return err
	}
	var errs []error
	if !c.swept {
		errs = append(errs, collectGarbage(ctx, c.w, c.all, c.conf.Name, c.conf.ValidAttachments))
	}
	if c.ipam != nil {
		errs = append(errs, c.ipam.gc(ctx))
	}
	return errors.Join(errs...)
}

// collectGarbage removes what attachments of a network have of any kind that plugins of this program declare, because
// an earlier list of the network may have had other plugins. The record that an interface was made is removed last, and
// only if everything else could be removed.
func collectGarbage(ctx context.Context, w *kernel.World, all []Plugin, network string,
	valid []spec.Attachment) error {
	var kinds [][]plan.Kind
	for _, p := range all {
		kinds = append(kinds, p.Kinds(nil))
	}
	owners := validOwners(network, valid)
	if err := engine.Collect(ctx, w, engine.Union(kinds...), network, owners); err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(p Plugin) bool { return p.role == makesLinks }) {
		return nil
	}
	return resource.CollectMade(w, network, owners)
}

// validOwners returns the owners of the attachments that GC must keep.
func validOwners(network string, valid []spec.Attachment) []spec.Owner {
	owners := make([]spec.Owner, 0, len(valid))
	for _, a := range valid {
		owners = append(owners, spec.Owner{Network: network, ContainerID: a.ContainerID, IfName: a.IfName})
	}
	return owners
}

// status reports whether an ADD would succeed: prerequisites are there, and an address is free.
func (c *call) status(ctx context.Context) error {
	want, err := c.want()
	if err != nil {
		return err
	}
	if err := c.openHost(); err != nil {
		return err
	}
	var errs []error
	if err := c.w.Store.Writable(); err != nil {
		errs = append(errs, withCode(spec.CodeUnavailable, err))
	}
	if err := engine.Verify(ctx, c.w, want.Required()); err != nil {
		errs = append(errs, withCode(spec.CodeUnavailable, err))
	}
	if c.ipam != nil {
		errs = append(errs, c.ipam.status(ctx))
		if err := c.addressable(); err != nil {
			errs = append(errs, withCode(spec.CodeUnavailable, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := possible(c.w, want); err != nil {
		return withCode(spec.CodeUnavailable, err)
	}
	return nil
}

// possible returns an error for each feature of the kernel that a plan needs and that is missing.
func possible(w *kernel.World, want plan.Plan) error {
	for _, r := range want {
		if possible := resource.TraitsOf(r).Possible; possible != nil {
			if err := possible(w); err != nil {
				return err
			}
		}
	}
	return nil
}
