package resource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
)

// The limits for waiting in an Announce: CarrierLimit for an event that may never come, such as the carrier of a link
// without a cable; the other for work that the kernel does in time. An IPv6 address is usable at once, or after a
// second or two of duplicate address detection. But the kernel's workers (queue ipv6_addrconf, and linkwatch) serve
// the namespaces of all containers. They do one job at a time on each CPU, and each job takes the lock of all changes
// of links, addresses and routes (rtnl_lock). While a thousand other links came and went, an address took 20 s.
const (
	CarrierLimit = 2 * time.Second
	KernelLimit  = time.Minute
)

// WaitCarrier waits until a link has a carrier. If the link is a port of a bridge, WaitCarrier also waits until the
// bridge forwards its packets.
func WaitCarrier(ctx context.Context, where Where, ns *kernel.NS, name string, limit time.Duration) error {
	wait := func(limit time.Duration, is func(*rtnl.Link) bool) error {
		return rtnl.Await(ns, ctx, limit, []uint{rtnl.LinkEvents}, func() (bool, error) {
			l, err := rtnl.LinkByName(ns, name)
			if err == nil && !l.Up {
				err = errors.New("is down")
			}
			return err == nil && is(l), err
		})
	}
	err := wait(limit, func(l *rtnl.Link) bool { return l.Operational })
	if err == nil {
		err = wait(CarrierLimit, func(l *rtnl.Link) bool { return l.Port == nil || l.Port.Forwarding })
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			slog.Warn("the bridge does not forward to its new port yet (spanning tree?)", "port", name)
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("wait for link %v%s to carry packets: %w", where, name, err)
	}
	return nil
}
