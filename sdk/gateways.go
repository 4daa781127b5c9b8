package sdk

import (
	"errors"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// gatewaysFree says for STATUS where the gateway of an address to come has no room on the bridge, which another network
// may have given its own. Of an allocator of another program nobody knows.
func (c *call) gatewaysFree() error {
	i, ok := c.ipam.(inside)
	if !ok {
		return nil
	}
	g, ok := i.Allocator.(ipam.Gatewayer)
	if !ok {
		return nil
	}
	defer func(was []spec.IP) { c.r.IPs = was }(c.r.IPs)
	var errs []error
	for _, choices := range g.Gateways() {
		var taken error
		for _, ip := range choices {
			c.r.IPs = []spec.IP{ip}
			want, err := c.want()
			if err != nil { // which it may be of this address alone, that nobody was given
				break
			}
			if taken = c.free(want); taken == nil {
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
		if g, ok := plan.Unwrap(r).(resource.Gateway); ok {
			errs = append(errs, g.Free(c.w))
		}
	}
	return errors.Join(errs...)
}
