package sdk

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
)

// addressable checks, for STATUS and before ADD changes anything, whether the addresses that the allocator may give can
// be used. An address cannot be used if the configuration excludes its family, if another network has an address of its
// gateway's subnet on the same link, or if its gateway is a router that the host needs. Allocators of other programs
// are not checked.
func (c *call) addressable() error {
	i, ok := c.ipam.(inside)
	if !ok || c.r.verb == "ADD" && !c.planned.Gateway { // else it is soon found out
		return nil
	}
	g, ok := i.Allocator.(ipam.Gatewayer)
	if !ok {
		return nil
	}
	defer func(ips []spec.IP, routes []spec.Route, planned Answer) {
		c.r.IPs, c.r.Routes, c.planned = ips, routes, planned
	}(c.r.IPs, c.r.Routes, c.planned)
	var errs []error
	for _, choices := range g.Gateways() {
		var taken error
		for _, ip := range choices {
			// as for every container but the first
			if c.r.verb == "ADD" && ip.Gateway.IsValid() && addr.OfHost(c.w, ip.Gateway) {
				taken = nil
				break
			}
			if ip.Address.Addr() == ip.Gateway { // the first of a range, which is never given
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

// ranges returns the addresses of a Request's Ranges. They are the same for CHECK, also where the address is of a range
// that replaced the only one meanwhile.
func ranges(a ipam.Allocator) []spec.IP {
	g, ok := a.(ipam.Gatewayer)
	if !ok {
		return nil
	}
	return several(slices.Concat(g.Gateways()...))
}

// pathMTU returns a Request's PathMTU.
func pathMTU(a ipam.Allocator) int {
	if p, ok := a.(ipam.Pather); ok {
		return p.PathMTU()
	}
	return 0
}

// several returns ranges, or nil if no two of a family are of different subnets.
func several(ranges []spec.IP) []spec.IP {
	for i, ip := range ranges {
		for _, before := range ranges[:i] {
			sameFamily := ip.Address.Addr().Is4() == before.Address.Addr().Is4()
			if sameFamily && ip.Address.Masked() != before.Address.Masked() {
				return ranges
			}
		}
	}
	return nil
}

// askRanges sets Ranges and PathMTU to those of the IPAM plugin of the configuration, if it is among all.
func (r *Request) askRanges(all []Plugin) {
	if !r.L3 {
		return
	}
	if a, err := allocator(all, r.verb, r.Owner, r.Netns, r.conf, r.args); a != nil && err == nil {
		r.Ranges, r.PathMTU = ranges(a), pathMTU(a)
	}
}

func (c *call) free(want plan.Plan) error {
	var errs []error
	for _, r := range want {
		is := resource.TraitsOf(r)
		if is.Free == nil {
			continue
		}
		if err := is.Free(c.w); err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", plan.Unwrap(r), err))
		}
		if c.r.verb == "STATUS" { // ADD says it when it makes the address
			errs = append(errs, is.Overlaps(c.w))
		}
	}
	return errors.Join(errs...)
}
