package doctor

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// ofContainers examines containers from inside: listeners of published ports, MTU, and duplicate addresses.
func (d *Doctor) ofContainers() {
	mtu, err := rtnl.EgressMTU(d.Host)
	if err != nil {
		d.Unexamined("the MTU of the way out: %v", err)
	}
	for _, c := range d.Selected {
		if d.Gone(c) || c.Result == nil || c.Netns == "" {
			continue
		}
		d.Inside(c, func(ns *kernel.NS) {
			for _, m := range attached.Mappings(c.Capabilities) {
				d.served(ns, c, m)
				d.reversePath(ns, c, m)
			}
			if d.hostLink(c) != "" && hasDefaultRoute(c, rtnl.IPv4) {
				d.fits(ns, c, mtu)
			}
			d.duplicates(ns, c)
		})
	}
}

// Inside calls do with the container's namespace, if that can be opened.
func (d *Doctor) Inside(c attach.Cached, do func(ns *kernel.NS)) {
	ns, err := d.Host.Enter(c.Netns)
	if err == nil {
		defer ns.Close()
		err = ns.Do(func() error { return nil })
	}
	if err != nil {
		d.Unexamined("container %s from inside: %v", attached.ShortOwner(c), err)
		return
	}
	do(ns)
}

// fits adds a finding if the container's MTU is larger than that of the way out.
func (d *Doctor) fits(ns *kernel.NS, c attach.Cached, mtu int) {
	l, err := rtnl.LinkByName(ns, c.IfName)
	if err != nil || mtu == 0 || routeMTU(ns, l) <= mtu {
		return
	}
	what := fmt.Sprintf("the container's MTU is %d, and that of the way out %d", l.MTU, mtu)
	d.addWith(MTUTooLarge, "container", what, affects(c), smaller(ns, c, l, mtu))
}

const duplicate = "another interface on the segment has the container's address"

// duplicates adds the addresses that the kernel does not use because duplicate address detection failed.
func (d *Doctor) duplicates(ns *kernel.NS, c attach.Cached) {
	l, err := rtnl.LinkByName(ns, c.IfName)
	if err != nil {
		return
	}
	addrs, err := rtnl.Addrs(ns, l.Index)
	if err != nil {
		d.Unexamined("the addresses of %s: %v", attached.ShortOwner(c), err)
	}
	for _, a := range addrs {
		if a.DADFailed {
			d.addWith(AddressDuplicate, "container", duplicate, affects(c, a.Prefix.Addr().String()),
				advice.OtherAddress(c, a.Prefix.Addr()))
		}
	}
}
