package ovs

import (
	"context"

	"github.com/fairlead-cni/fairlead/internal/kernel/ethtool"
	"github.com/fairlead-cni/fairlead/internal/ovsdb"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
)

// OffloadOff makes the kernel compute the checksums of packets that a container's link sends, if the bridge's datapath
// is ovs-vswitchd's own. A program in user space behind the link needs them, because no network card there completes a
// missing checksum.
type OffloadOff struct {
	Bridge Bridge // Datapath may be empty: then the bridge's row says it
	Link   string
}

func (o OffloadOff) String() string {
	when := resource.Flag("if "+o.Bridge.Name+" has datapath_type netdev", o.Bridge.Datapath == "")
	return resource.Line("offload cont/"+o.Link, "tx off", when)
}

// Ensure implements plan.Resource.
func (o OffloadOff) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	ns, on, err := o.wrong(ctx, w)
	if err != nil || !on {
		return false, err
	}
	return true, ethtool.SetTxChecksum(ns, o.Link, false)
}

// Verify implements plan.Resource.
func (o OffloadOff) Verify(ctx context.Context, w *kernel.World) error {
	_, on, err := o.wrong(ctx, w)
	if err != nil {
		return err
	}
	var d resource.Drift
	d.Want("tx", "off", map[bool]string{true: "on", false: "off"}[on])
	return d.Err()
}

// wrong reports whether the link leaves checksums to a network card that it does not have.
func (o OffloadOff) wrong(ctx context.Context, w *kernel.World) (ns *kernel.NS, on bool, err error) {
	if ns, err = resource.Container.Namespace(w); err != nil {
		return nil, false, err
	}
	datapath := o.Bridge.Datapath
	if datapath == "" {
		err = o.Bridge.DB.do(ctx, func(c *ovsdb.Conn) error {
			row, err := o.Bridge.find(ctx, c)
			if row != nil {
				datapath = row.Text("datapath_type")
			}
			return err
		})
	}
	if err != nil || datapath != "netdev" {
		return ns, false, err
	}
	on, err = ethtool.TxChecksum(ns, o.Link)
	return ns, on, err
}
