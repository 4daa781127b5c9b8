package sdk

import (
	"context"
	"slices"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// reroute updates the routes of a previous result: it removes those that the plan deleted and adds those that the plan
// added. If several changes concern the same route, the kernel's final state decides.
func (c *call) reroute(ctx context.Context, res *spec.Result, want plan.Plan) error {
	link := c.r.IfName
	ips := c.r.ContainerIPs() // whose gateways routes without one of their own have
	for _, w := range want {
		change := resource.TraitsOf(w)
		if change.Deleted == nil {
			continue
		}
		keep := res.Routes[:0:0]
		for _, rt := range res.Routes {
			as := routeBy(ips, link, rt)
			deleted, err := change.Deleted(c.w, rt.Dst)
			there := !deleted
			if deleted && err == nil {
				there, err = as.Present(ctx, c.w)
			}
			if err != nil {
				return err
			}
			if there {
				keep = append(keep, rt)
			}
		}
		for _, rt := range change.Routes {
			as := routeBy(ips, link, rt)
			there, err := as.Present(ctx, c.w)
			if err != nil {
				return err
			}
			same := func(known spec.Route) bool { return routeBy(ips, link, known) == as }
			if there && !slices.ContainsFunc(keep, same) {
				keep = append(keep, rt)
			}
		}
		res.Routes = keep
	}
	return nil
}
