package repair

import (
	"context"
	"fmt"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/spec"
)

// reattach attaches again what the report calls foreign, with Fairlead's plugins, and enters the outcome in the
// report.
func reattach(ctx context.Context, a *app.App, report *repair.Report) {
	a.Orphans = true
	for i := range report.Findings {
		f := &report.Findings[i]
		if f.State != repair.Foreign && f.State != repair.Offline {
			continue
		}
		if err := reattachOne(ctx, a, f.Owner); err != nil {
			f.State = repair.Broken
			f.Differences = append(f.Differences, spec.Difference{}.Saying(fmt.Errorf("not adopted: %w", err)))
			continue
		}
		f.State, f.Differences, f.NotOurs = repair.Adopted, nil, nil
	}
}

// reattachOne deletes an attachment with Fairlead's plugins, which remove what the reference made, and adds it with the
// same addresses.
func reattachOne(ctx context.Context, a *app.App, o spec.Owner) error {
	list, _ := attached.List(o.Network)
	cached := attached.ByOwner(list, o)
	if cached == nil || cached.Bare {
		return attach.ErrNotAttached
	}
	c := *cached
	n, rt, err := target.FindRuntime(a, netconf.Find, o.Network)
	if err != nil {
		return err
	}
	l := c.AttachedBy(n.List)
	foreign := netconf.Foreign()
	for _, p := range l.WrittenOut().Plugins {
		for _, typ := range []string{p.Type, p.IPAMType} {
			if why := foreign(l, typ); why != "" && netconf.OfType(typ) != nil {
				return fmt.Errorf("%s: install fairlead's plugin in its place first, or let CNI_PATH begin with "+
					"the directory of fairlead's plugins",
					why)
			}
		}
	}
	at := attach.Attachment{ContainerID: o.ContainerID, IfName: o.IfName, Netns: c.Netns, Args: c.Args,
		Capabilities: c.Capabilities, CNI: advice.SameAddresses(l, c)}
	if err := rt.Del(ctx, l, at, attach.Continue()); err != nil {
		return fmt.Errorf("its del failed: %w", err)
	}
	if _, err := rt.Add(ctx, l, at); err != nil {
		return fmt.Errorf("it was deleted, but its add failed: %w", err)
	}
	return nil
}
