package link

import (
	"context"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/ethtool"
	"github.com/fairlead-cni/fairlead/resource"
)

// OffloadOff makes the kernel compute the checksums of packets that a container's link sends. A program in user space
// behind the link needs them, because no network card there completes a missing checksum.
type OffloadOff struct{ Link string }

func (o OffloadOff) String() string { return "offload cont/" + o.Link + " tx off" }

// Traits implements resource.Describer.
func (o OffloadOff) Traits() resource.Traits {
	return resource.Traits{On: resource.Iface{Name: o.Link}}
}

// Ensure implements plan.Resource.
func (o OffloadOff) Ensure(_ context.Context, w *kernel.World) (bool, error) {
	ns, err := resource.Container.Namespace(w)
	if err != nil {
		return false, err
	}
	on, err := ethtool.TxChecksum(ns, o.Link)
	if err != nil || !on {
		return false, err
	}
	return true, ethtool.SetTxChecksum(ns, o.Link, false)
}

// Verify implements plan.Resource.
func (o OffloadOff) Verify(_ context.Context, w *kernel.World) error {
	ns, err := resource.Container.Namespace(w)
	if err != nil {
		return err
	}
	on, err := ethtool.TxChecksum(ns, o.Link)
	if err != nil {
		return err
	}
	var d resource.Drift
	d.Want("tx", "off", map[bool]string{true: "on", false: "off"}[on])
	return d.Err()
}
