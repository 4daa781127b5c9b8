package hostdev

import (
	"context"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
)

// DeviceKind is the Kind of HostDevice and UserspaceDevice: devices of the host, which go back to it. Ways are those by
// which the configuration says which device: what the reference's plugin moved is found by them. What is nowhere yet
// stays recorded.
func DeviceKind(ways []Device) plan.Kind {
	return resource.NewKind("device of the host", resource.KindFuncs{
		Owners: func(_ context.Context, w *kernel.World, network string) (tags []plan.Tag, err error) {
			records, err := DeviceRecords(w)
			for _, r := range records {
				if r.Owner.Network == network {
					tags = append(tags, plan.TagOf(r.Owner))
				}
			}
			return tags, err
		},
		Remove: func(ctx context.Context, w *kernel.World, t plan.Tag) error {
			h := HostDevice{Owner: t.Owner, Name: t.Owner.IfName}
			if len(ways) > 0 {
				h.Device, h.Also = ways[0], ways[1:]
			}
			_, h.Attached = resource.PrevMAC(t)
			return h.Remove(ctx, w)
		}})
}
