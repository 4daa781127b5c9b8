package doctor

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
	"github.com/fairlead-cni/fairlead/internal/kernel/tc"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// smaller says how the container sends smaller packets by its default route. To attach it again would change nothing
// while the network's list has no other mtu.
func smaller(ns *kernel.NS, c attach.Cached, l *rtnl.Link, mtu int) trace.Advice {
	for _, r := range defaultRoutes(ns, rtnl.IPv4) {
		plain := r.Via.IsValid() && !r.Src.IsValid() && r.Priority == 0 && r.AdvMSS == 0 && !r.OnLink
		if r.Link == l.Index && plain {
			replace := fmt.Sprintf("ip route replace default via %v dev %s mtu %d", r.Via, c.IfName, mtu)
			return fix(replace).In(c.Netns)
		}
	}
	const sets = "set \"mtu\": %d in the list of network %s, and attach the container again"
	return look(fmt.Sprintf(sets, mtu, c.Network))
}

// shaped returns the burst, in bytes, of a qdisc tbf of the uplink if it is too small for packets of a size. The qdisc
// drops these.
func (d *Doctor) shaped(size int) (link string, burst int) {
	const frameHeader = 14
	uplink, err := rtnl.Egress(d.Host)
	if err != nil {
		return "", 0
	}
	q, err := tc.QdiscAt(d.Host, uplink.Index, tc.Root)
	if err != nil || q == nil || q.Kind != "tbf" {
		return "", 0
	}
	const tick = 64 // ns
	if burst = int(uint64(q.Bucket.Ticks) * tick * q.Bucket.Rate / 1e9); burst >= size+frameHeader {
		return "", 0
	}
	return uplink.Name, burst
}

// routeMTU returns the MTU of a container's default route by a link, else that of the link.
func routeMTU(ns *kernel.NS, l *rtnl.Link) int {
	for _, r := range defaultRoutes(ns, rtnl.IPv4) {
		if r.Link == l.Index && r.MTU != 0 {
			return min(r.MTU, l.MTU)
		}
	}
	return l.MTU
}
