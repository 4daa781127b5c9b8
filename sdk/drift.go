package sdk

import (
	"context"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// verify compares all resources with the kernel. A missing link is reported once, by the first resource that needs it,
// which is the one that made it if the plan contains that. The other resources that need the link are listed with it,
// because nothing else can be said about them.
func verify(ctx context.Context, want plan.Plan, w *kernel.World) (all spec.Differences) {
	lacking := map[string]int{} // by the name of a missing link, the last difference of the resource that reports it
	for _, r := range want {
		end := engine.Step(ctx, r)
		found := resource.Compared(r, r.Verify(ctx, w))
		end()
		if first, known := reported(found, lacking); known {
			all[first].Needed = append(all[first].Needed, r.String())
			continue
		}
		all = append(all, found...)
		for _, d := range found {
			if d.LacksLink() {
				lacking[d.Want] = len(all) - 1
			}
		}
	}
	return all
}

// reported returns where the absence of a link that found reports is listed already.
func reported(found spec.Differences, lacking map[string]int) (at int, known bool) {
	for _, d := range found {
		if at, known = lacking[d.Want]; known && d.LacksLink() {
			return at, true
		}
	}
	return 0, false
}
