// Package cluster allocates addresses from the ranges that a cluster gave this node, and keeps the leases on this host.
//
// fairlead-agent writes the ranges to /run/fairlead/cluster/NETWORK.json. ADD, CHECK, DEL, GC and STATUS need neither
// the agent nor the cluster, so they work while these are away. Without that file, or with one of an earlier boot, ADD
// fails with code 11 and STATUS with code 50. CHECK, DEL and GC do not need it.
//
// If no address is left, ADD asks the agent for more, and waits at most 2 seconds. If there are none, ADD fails with
// code 11, and the error says which nodes have free ones, or that the agent does not answer. STATUS fails with code 50
// while fewer addresses are left than the agent keeps in reserve.
//
// A container that asks for an address of a pinned pool by name gets it on any node, unless a container of another node
// has it: then ADD fails with code 11, and the error names that node.
//
// Where silent nodes lose their addresses, no container gets one after the deadline that the agent wrote, also while
// the agent does not run: ADD fails with code 11 and STATUS with code 50.
//
// The leases are host-local's: a network that allocates with host-local from the same range can change to cluster, and
// its containers keep their addresses.
package cluster

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/ipam/sticky"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the cluster plugin.
var Plugin = sdk.Allocator("cluster", "allocates addresses from the ranges that a cluster gave this node", open).
	KnowsArgsOf(sticky.Args)

type conf struct {
	IPAM struct {
		// The word cluster.
		Type string `json:"type"`
		// Routes of the container, which become part of the result. Default: a default route for each family of the
		// node's range, with the MTU of the way to other nodes.
		Routes []spec.Route `json:"routes"`
		// Directory of the leases. Each network has a directory of its own in it. Default: /var/lib/cni/networks.
		DataDir string `json:"dataDir"`
		// Give successive containers with the same key the same addresses, as host-local does, as long as the node has
		// their block. Default: every container gets any free address.
		Sticky *sticky.Conf `json:"sticky"`
		// Name of the pool of the cluster that containers get addresses of, where nodes share pools. Default: any pool
		// of the node.
		Pool string `json:"pool"`
		// Names of several such pools. Either this or pool.
		Pools []string `json:"pools"`
	} `json:"ipam"`
	RuntimeConfig struct {
		// Addresses to allocate, at most one of each family, set by the runtime. They have to be in the ranges of this
		// node, or in a pinned pool of the cluster.
		IPs []string `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			// Addresses to allocate, in addition to runtimeConfig.ips. If the key is missing, IP of CNI_ARGS is used.
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

// releaseCooldown is how long a released address rests while others are free, as in host-local.
const releaseCooldown = 30 * time.Second

func open(c conf, r *sdk.Request) (ipam.Allocator, error) {
	n := &node{network: r.Owner.Network, routes: c.IPAM.Routes, pools: c.IPAM.Pools}
	if c.IPAM.Pool != "" {
		if c.IPAM.Pools != nil {
			return nil, spec.Errorf(spec.CodeConfig, "ipam.pool: %q and ipam.pools: want one of the two", c.IPAM.Pool)
		}
		n.pools = []string{c.IPAM.Pool}
	}
	n.Store = disk.Store{DataDir: c.IPAM.DataDir, Cooldown: releaseCooldown, Netns: r.Netns, Granted: n.granted}
	var err error
	if n.Sticky, err = c.IPAM.Sticky.Of(r); err != nil {
		return n, err
	}
	ofEnv, _ := r.Arg("IP")
	anywhere := func(string, netip.Addr) error { return nil } // Allocate knows the ranges
	n.Requested, err = ipam.Requested(c.RuntimeConfig.IPs, c.Args.CNI.IPs, ofEnv, anywhere)
	return n, err
}

// A node is the store of this node's leases, whose ranges are in the grant.
type node struct {
	disk.Store
	network string
	routes  []spec.Route
	pools   []string // of which a container may have addresses; none: of all

	grant *grant.Grant // as granted read it last
}

// granted reads the grant. The addresses of each family are one set.
func (n *node) granted() ([]ipam.Set, error) {
	g, err := grant.Read(n.network)
	if err != nil {
		out := spec.AsError(err, spec.CodeTryAgain)
		var why *grant.Error
		if errors.As(err, &why) {
			out.WithHint(why.Hint)
		}
		return nil, out
	}
	n.grant = g
	ranges, err := n.ranges(g)
	if err != nil {
		return nil, err
	}
	var sets []ipam.Set
	for _, is4 := range []bool{true, false} {
		set := ipam.Set{Path: grant.Path(n.network)}
		for _, r := range ranges {
			if r.Subnet.Addr().Is4() == is4 {
				set.Ranges = append(set.Ranges, r)
			}
		}
		if len(set.Ranges) > 0 {
			sets = append(sets, set)
		}
	}
	return ipam.Complete(sets)
}

// ranges returns those of a grant from which the container may have an address.
func (n *node) ranges(g *grant.Grant) (list []ipam.Range, err error) {
	for i, name := range n.pools {
		isKnown := slices.ContainsFunc(g.Pools, func(p grant.Pool) bool { return p.Name == name && !p.Pinned })
		if !isKnown {
			return nil, spec.Errorf(spec.CodeConfig, "ipam.pools[%d]: the node has no pool %q", i, name).
				WithHint("`fairlead cluster pools` lists the pools.")
		}
	}
	late := errNoRange
	isLate := func(p netip.Prefix) bool {
		end, ends := g.Until[p]
		return ends && disk.Uptime() >= end
	}
	for _, p := range g.Ranges {
		if isLate(p) {
			late = errSilent
			continue
		}
		of, _ := g.Of(p.Addr())
		if len(n.pools) == 0 || slices.Contains(n.pools, of.Name) {
			r, err := rangeOf(p, of.Bits, g.Ranges)
			if err != nil {
				return nil, err
			}
			list = append(list, r)
		}
	}
	for _, a := range n.Requested {
		p, _ := g.Of(a)
		if !p.Pinned {
			continue
		}
		all, err := ipam.Complete([]ipam.Set{{Path: grant.Path(n.network), Ranges: []ipam.Range{{Subnet: p.Prefix}}}})
		if err != nil {
			return nil, err
		}
		if _, err := ipam.Assign(all, []netip.Addr{a}); err != nil {
			return nil, err
		}
		if !slices.Contains(g.Pins, a) {
			return nil, errUnpinned
		}
		if isLate(netip.PrefixFrom(a, a.BitLen())) {
			return nil, errSilent
		}
		list = append(list, ipam.Range{Subnet: p.Prefix, RangeStart: a, RangeEnd: a})
	}
	if len(list) == 0 {
		return nil, late
	}
	return list, nil
}

// rangeOf returns the addresses of a block, or of a part of one. Containers of the node that has the first part have
// the gateway of the block, and those of others the second address of their part.
func rangeOf(p netip.Prefix, blockBits int, all []netip.Prefix) (ipam.Range, error) {
	block := netip.PrefixFrom(p.Addr(), blockBits).Masked()
	if blockBits == 0 || p.Bits() <= blockBits {
		return ipam.Range{Subnet: p}, nil
	}
	of, err := ipam.Complete([]ipam.Set{{Ranges: []ipam.Range{{Subnet: p}}}})
	if err != nil {
		return ipam.Range{}, err
	}
	r := ipam.Range{Subnet: block, RangeStart: p.Addr(), RangeEnd: of[0].Ranges[0].RangeEnd}
	if next := r.RangeEnd.Next(); r.RangeEnd.Is4() && block.Contains(next.Next()) {
		r.RangeEnd = next // is no broadcast address in a block that goes on
	}
	hasFirst := slices.ContainsFunc(all, func(q netip.Prefix) bool { return q.Contains(block.Addr()) })
	switch {
	case p.Addr() == block.Addr():
		r.RangeStart = netip.Addr{}
	case !hasFirst:
		r.Gateway = p.Addr().Next()
	}
	return r, nil
}

// The reasons for which the agent is asked.
var (
	errUnpinned = errors.New("the node has not got the address that the container asks for")
	errNoRange  = errors.New("the node has no block of the pools that the network names")
	errSilent   = errors.New("the cluster has not heard of this node for so long that others may get its addresses")
)

// Allocate implements ipam.Allocator.
func (n *node) Allocate(ctx context.Context, o spec.Owner) (*spec.Result, error) {
	res, err := n.Store.Allocate(ctx, o)
	var asked error
	if lacksRange(err) {
		var refusal *grant.Refusal
		asked = grant.Ask(ctx, n.network, grant.Want{Pins: n.pins(), Pools: n.pools})
		if errors.As(asked, &refusal) {
			return nil, spec.Errorf(spec.CodeTryAgain, "%w; %w", err, refusal).WithHint(refusal.Hint)
		}
		if asked == nil {
			res, err = n.Store.Allocate(ctx, o)
		}
	}
	if err != nil {
		var none *grant.Error // which has a hint of its own
		isUnanswered := asked != nil && !errors.Is(asked, grant.ErrFixed) && !errors.As(err, &none)
		err = n.explain(spec.CodeTryAgain, err)
		if isUnanswered {
			err = spec.Errorf(spec.CodeTryAgain, "%w; fairlead-agent does not answer: %w", err, asked).
				WithHint(grant.StartAgent)
		}
		return nil, err
	}
	res.Routes = n.routesOf(n.Sets)
	return res, nil
}

// pins returns the addresses of pinned pools that the container asks for.
func (n *node) pins() (list []netip.Addr) {
	g, err := grant.OfBoot(n.network)
	if err != nil {
		return nil
	}
	for _, a := range n.Requested {
		if p, _ := g.Of(a); p.Pinned {
			list = append(list, a)
		}
	}
	return list
}

// lacksRange reports whether another range would help.
func lacksRange(err error) bool {
	var none *grant.Error
	return errors.Is(err, ipam.ErrExhausted) || errors.Is(err, errUnpinned) || errors.Is(err, errNoRange) ||
		errors.Is(err, errSilent) || errors.As(err, &none)
}

// explain adds to an error why the node has no more addresses, and who could give some.
func (n *node) explain(code spec.Code, err error) error {
	if errors.Is(err, errUnpinned) || errors.Is(err, errNoRange) {
		err = spec.Errorf(code, "%w, and fairlead-agent did not get it", err).WithHint(grant.StartAgent)
	}
	if errors.Is(err, errSilent) {
		return spec.Errorf(code, "%s: %w", grant.Path(n.network), err).WithHint(grant.StartAgent)
	}
	if n.grant == nil || n.grant.Missing == "" || !errors.Is(err, ipam.ErrExhausted) {
		return err
	}
	return spec.Errorf(code, "%w; %s", err, n.grant.Missing).WithHint(n.grant.Hint)
}

// Status implements ipam.Allocator. Below the reserve, the node wants no more containers.
func (n *node) Status(ctx context.Context, network string) error {
	if err := n.Store.Status(ctx, network); err != nil {
		return n.explain(spec.CodeUnavailable, err)
	}
	if n.grant == nil || n.grant.Reserve == 0 {
		return nil
	}
	book, err := n.Look(ctx, network)
	if err != nil {
		return err
	}
	reserve := ipam.CountOf(uint64(n.grant.Reserve))
	for _, u := range book.Uses {
		if u.Available.Less(reserve) {
			err := spec.Errorf(spec.CodeUnavailable, "%s: %s of %s addresses are left in %s, and %d are the reserve",
				u.Path, u.Available, u.Size, u.Range, n.grant.Reserve)
			if n.grant.Missing != "" {
				err = spec.Errorf(spec.CodeUnavailable, "%w; %s", err, n.grant.Missing).WithHint(n.grant.Hint)
			}
			return err
		}
	}
	return nil
}

// PathMTU implements ipam.Pather.
func (n *node) PathMTU() int {
	if n.grant == nil {
		if _, err := n.granted(); err != nil {
			return 0
		}
	}
	return n.grant.MTU
}

// routesOf returns the routes of a container with an address of each set.
func (n *node) routesOf(sets []ipam.Set) []spec.Route {
	if n.routes != nil {
		return n.routes
	}
	var routes []spec.Route
	for _, s := range sets {
		zero := netip.IPv6Unspecified()
		if s.Is4() {
			zero = netip.IPv4Unspecified()
		}
		routes = append(routes, spec.Route{Dst: netip.PrefixFrom(zero, 0), MTU: n.grant.MTU})
	}
	return routes
}

// Forecast implements ipam.Forecaster. It knows nothing while there is no grant.
func (n *node) Forecast() (*spec.Result, []ipam.Set) {
	sets, err := n.granted()
	if err != nil {
		return nil, nil
	}
	res := &spec.Result{Routes: n.routesOf(sets)}
	for _, set := range sets {
		if ip, ok := set.First(nil); ok {
			res.IPs = append(res.IPs, ip)
		}
	}
	return res, sets
}

// Gateways implements ipam.Gatewayer. It knows nothing while there is no grant.
func (n *node) Gateways() (all [][]spec.IP) {
	sets, err := n.granted()
	if err != nil {
		return nil
	}
	for _, s := range sets {
		var choices []spec.IP
		for _, r := range s.Ranges {
			choices = append(choices, spec.IP{Address: netip.PrefixFrom(r.RangeStart, r.Subnet.Bits()),
				Gateway: r.Gateway})
		}
		all = append(all, choices)
	}
	return all
}
