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

// How long an Announce waits for what may never come, as a link whose cable is out, and for what the kernel does in
// time. That is, for an IPv6 address, as good as nothing, or a second or two where it asks whether somebody else has
// it. But the workers that do it (of the queue ipv6_addrconf, and of linkwatch) serve the namespaces of all containers:
// one work at a time on each CPU, and each takes the lock that every change of a link, address or route takes
// (rtnl_lock). Where a thousand links come and go beside them, an address has waited for 20 s.
const (
	CarrierLimit = 2 * time.Second
	KernelLimit  = time.Minute
)

// WaitCarrier waits until a link carries packets and, where it is a port of a bridge, that forwards them.
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
