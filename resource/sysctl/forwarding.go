package sysctl

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/kernel/procsys"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
)

// A Forwarding makes the host forward packets of one family. It is never undone.
type Forwarding struct{ V6 bool }

func (f Forwarding) String() string {
	if f.V6 {
		return "forwarding ipv6"
	}
	return "forwarding ipv4"
}

func (f Forwarding) key() string {
	if f.V6 {
		return "net/ipv6/conf/all/forwarding"
	}
	return "net/ipv4/ip_forward"
}

// Ensure implements plan.Resource.
func (f Forwarding) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	if f.Verify(ctx, w) == nil {
		return false, nil
	}
	if f.V6 {
		if err := keepRA(w.Host); err != nil {
			return false, err
		}
	}
	return procsys.Set(w.Host, procsys.Setting{Key: f.key(), Value: "1"})
}

// keepRA sets accept_ra to 2 for links that depend on router advertisements. A host that starts to forward IPv6
// otherwise ignores router advertisements, and drops the default route from one at once.
func keepRA(ns *kernel.NS) error {
	routes, err := rtnl.Routes(ns, rtnl.RouteFilter{Family: rtnl.IPv6, Protocol: rtnl.ByRA})
	if err != nil {
		return err
	}
	seen := map[int]bool{}
	for _, r := range routes {
		if r.Link == 0 || seen[r.Link] {
			continue
		}
		seen[r.Link] = true
		l, err := rtnl.LinkByIndex(ns, r.Link)
		if errors.Is(err, rtnl.ErrNoLink) {
			continue
		} else if err != nil {
			return err
		}
		// 0 is a daemon's work (networkd's routes look the same): the kernel has not learnt them and will
		// not drop them.
		key := "net/ipv6/conf/" + l.Name + "/accept_ra"
		if v, err := procsys.Get(ns, key); err != nil || v != "1" {
			continue
		}
		if _, err := procsys.Set(ns, procsys.Setting{Key: key, Value: "2"}); err != nil {
			return fmt.Errorf("forwarding ipv6 would lose the routes that %s has by router advertisement: %w", l.Name,
				err)
		}
	}
	return nil
}

// Verify implements plan.Resource.
func (f Forwarding) Verify(ctx context.Context, w *kernel.World) error {
	v, err := procsys.Get(w.Host, f.key())
	if err != nil {
		return err
	}
	var d resource.Drift
	if v == "0" {
		d.Want(f.key(), "1", v)
	}
	return d.Err()
}

// Traits implements resource.Describer.
func (f Forwarding) Traits() resource.Traits { return resource.Traits{Fix: f.Ensure} }
