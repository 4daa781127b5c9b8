package hostdev

import (
	"context"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
)

// DeviceKind returns the Kind of HostDevice and UserspaceDevice. Its Remove returns devices to the host. Ways are the
// device's selections in the configuration; Remove finds devices by them that the reference's plugin has moved. The
// record stays while the device cannot be found.
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
