package sdk

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
)

// addressable says, for STATUS and before ADD changes anything, where no address to come would do: the configuration
// does not go with one of its family, or its gateway has no room on its link, which another network may have given its
// own, or is a router that the host itself needs. Of an allocator of another program nobody knows.
func (c *call) addressable() error {
	i, ok := c.ipam.(inside)
	if !ok || c.r.verb == "ADD" && !c.gave.Gateway { // else it is soon found out
		return nil
	}
	g, ok := i.Allocator.(ipam.Gatewayer)
	if !ok {
		return nil
	}
	defer func(ips []spec.IP, routes []spec.Route, gave Answer) {
		c.r.IPs, c.r.Routes, c.gave = ips, routes, gave
	}(c.r.IPs, c.r.Routes, c.gave)
	var errs []error
	for _, choices := range g.Gateways() {
		var taken error
		for _, ip := range choices {
			// as for every container but the first
			if c.r.verb == "ADD" && ip.Gateway.IsValid() && addr.OfHost(c.w, ip.Gateway) {
				taken = nil
				break
			}
			if ip.Address.Addr() == ip.Gateway { // the first of a range, which is given to nobody
				ip.Address = netip.PrefixFrom(ip.Gateway.Next(), ip.Address.Bits())
			}
			c.r.IPs, c.r.Routes = []spec.IP{ip}, nil
			want, err := c.want()
			if err == nil {
				err = c.free(want)
			}
			if taken = err; taken == nil {
				break
			}
		}
		errs = append(errs, taken)
	}
	return errors.Join(errs...)
}

func (c *call) free(want plan.Plan) error {
	var errs []error
	for _, r := range want {
		g, ok := plan.Unwrap(r).(addr.Freer)
		if !ok {
			continue
		}
		if err := g.Free(c.w); err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", plan.Unwrap(r), err))
		}
		if c.r.verb == "STATUS" { // ADD says it when it makes the address
			errs = append(errs, g.Overlaps(c.w))
		}
	}
	return errors.Join(errs...)
}
