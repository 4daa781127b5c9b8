package repair

import (
	"context"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/resource"
)

// external is a plugin of another project that repairs its part of an attachment itself.
type external struct {
	*extra.External
	told attach.Input
	args [][2]string
}

// external asks plugins of other projects to restore what they made: blocking rules of all attachments first, and
// the rest after Fairlead's own resources. A dry run asks once.
func (a *attached) external(ctx context.Context, e resource.Effect) {
	if a.State != "" || len(a.externals) == 0 || a.r.DryRun && e == resource.Closes {
		return
	}
	w, release := a.enter(ctx)
	if w == nil {
		return
	}
	defer release()
	for _, x := range a.externals {
		answer, err := x.Repair(ctx, a.Owner, a.cached.Netns, x.args, extra.RepairRequest{
			Conf: x.told.Stdin, DryRun: a.r.DryRun, Firewall: a.r.Firewall, Closes: e == resource.Closes})
		if err != nil {
			a.broken(err)
			continue
		}
		for _, made := range answer.Repaired {
			a.did(made)
		}
		if e == resource.Closes { // a fault that remains is reported the second time
			continue
		}
		a.differs(answer.Wrong...)
		if a.r.DryRun {
			a.Plan = append(a.Plan, answer.Plan...)
		}
	}
}
