package sdk

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/addr"
	"github.com/fairlead-cni/fairlead/spec"
)

// result returns the result of ADD: the plan's links with the MAC and MTU that the kernel shows, and the addresses and
// routes in force.
func (c *call) result(ctx context.Context, want plan.Plan) (*spec.Result, error) {
	res := &spec.Result{}
	if c.r.Prev != nil {
		res = c.r.Prev.Clone()
	}
	if c.ipam == nil && len(c.planned.IPs) > 0 { // they come again below, as this interface's
		res.IPs, res.Routes = nil, nil
	}
	switch {
	case c.p.role == chained:
		return res, errors.Join(c.addLinks(res, want), c.reroute(ctx, res, want), c.tell(res, want))
	case c.p.observe && c.r.Prev != nil:
		return res, nil
	}
	own, link, unseen, err := c.listLinks(res, want)
	if err == nil {
		err = c.tell(res, want)
	}
	if err != nil {
		return nil, err
	}
	ips := slices.Clone(c.planned.IPs)
	if c.p.observe {
		prefixes, err := addr.Addresses(resource.Iface{Name: link}, c.w)
		if err != nil {
			return nil, err
		}
		for _, p := range prefixes {
			ips = append(ips, spec.IP{Address: p})
		}
	}
	for _, ip := range ips {
		if own >= 0 {
			i := own
			ip.Interface = &i
		}
		res.IPs = append(res.IPs, ip)
	}
	for _, rt := range c.planned.Routes {
		if rt.Dst.Bits() == 0 && !unseen { // skipped where another network's default route was there first (clause P25)
			if there, err := routeBy(c.planned.IPs, link, rt).Present(ctx, c.w); err != nil {
				return nil, err
			} else if !there {
				continue
			}
		}
		res.Routes = append(res.Routes, rt)
	}
	if !c.dns.Empty() {
		res.DNS = c.dns
	}
	if d := c.conf.DNS; d != nil && (d.Nameservers != nil || d.Domain != "" || d.Search != nil || d.Options != nil) {
		res.DNS = *d // clause C11: the configuration's own word, an empty list too, replaces the allocator's
	}
	return res, nil
}

// listLinks adds the plan's links to a result. Own is the index of the container interface, and link its name. If the
// plan has no container interface, as after a plugin that made a tap, it is the one of the previous plugin. Unseen
// reports that the kernel does not show the interface.
func (c *call) listLinks(res *spec.Result, want plan.Plan) (own int, link string, unseen bool, err error) {
	own, link = c.r.prevInterface(), c.r.IfName
	listed := len(res.Interfaces)
	for f := range ifaces(want) {
		sandbox := ""
		if f.Where == resource.Container {
			sandbox = c.r.Netns
		}
		i := slices.IndexFunc(res.Interfaces,
			func(have spec.Interface) bool { return have.Name == f.Name && have.Sandbox == sandbox })
		if i < 0 {
			i = len(res.Interfaces)
			res.Interfaces = append(res.Interfaces, spec.Interface{Name: f.Name, Sandbox: sandbox})
		}
		if unseen = f.Unseen; !unseen && i >= listed { // what others made is as they said
			if res.Interfaces[i].MAC, res.Interfaces[i].MTU, err = addr.Shown(f, c.w); err != nil {
				return own, link, unseen, err
			}
		}
		if f.Where == resource.Container {
			own, link = i, f.Name
		}
	}
	return own, link, unseen, nil
}

// ifaces iterates over the links of a plan in its order.
func ifaces(p plan.Plan) iter.Seq[resource.Iface] {
	return func(yield func(resource.Iface) bool) {
		for _, r := range p {
			for _, f := range resource.TraitsOf(r).Ifaces {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// addLinks adds to a previous result the links that a chained plugin made on the host. Interfaces in the container that
// the result does not list are not added.
func (c *call) addLinks(res *spec.Result, want plan.Plan) error {
	for f := range ifaces(want) {
		i := slices.IndexFunc(res.Interfaces, func(have spec.Interface) bool {
			return have.Name == f.Name && (have.Sandbox != "") == (f.Where == resource.Container)
		})
		if f.Where == resource.Host && i < 0 {
			mac, mtu, err := addr.Shown(f, c.w)
			if err != nil {
				return err
			}
			res.Interfaces = append(res.Interfaces, spec.Interface{Name: f.Name, MAC: mac, MTU: mtu})
		}
	}
	return nil
}

// tell lets each resource write into the result what it knows beyond its links.
func (c *call) tell(res *spec.Result, want plan.Plan) error {
	for _, r := range want {
		if tell := resource.TraitsOf(r).Tell; tell != nil {
			if err := tell(c.w, res); err != nil {
				return err
			}
		}
	}
	return nil
}
