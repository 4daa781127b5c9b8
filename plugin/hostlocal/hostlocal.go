// Package hostlocal allocates addresses from ranges, and keeps the leases on this host.
//
// An owner gets one address from each outer list of ranges: the address that it had in an earlier boot of the host;
// else one that the runtime asks for; else one that is reserved for its sticky key; else the one that its key had
// last; else the next free one.
//
// Sticky addresses: successive containers with the same key, such as the name of a pod, get the same addresses. While
// no container has the key, its address is held: others get it only if nothing else is free. After `ttl` it is like
// any other address. If two containers have the same key at the same time, the second one gets another address, with a
// warning.
//
// Reserved addresses, from `reserved` and from `fairlead ipam reserve`, are allocated only to containers that ask for
// them. Addresses that are reserved for a sticky key (`fairlead ipam reserve --for`) are allocated to containers with
// that key, without asking, and to no others.
//
// `IP` in CNI_ARGS asks for an address (`IP=192.0.2.5`), or for one of each range (`IP=192.0.2.5,2001:db8::5`).
// `ipam.sticky.key` may name keys of CNI_ARGS. The interface plugin gets the same CNI_ARGS, and some interface plugins
// (bridge, macvlan, macvtap, tap) reject unknown keys: add `IgnoreUnknown=1`.
package hostlocal

import (
	"context"
	"net/netip"
	"strconv"
	"time"

	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/sticky"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the host-local plugin.
var Plugin = sdk.Allocator("host-local", "allocates addresses from ranges of this host",
	open).KnowsArgs("IP").KnowsArgsOf(sticky.Args)

type conf struct {
	IPAM struct {
		// The word host-local.
		Type       string `json:"type"`
		ipam.Range        // a lone range
		// Ranges to allocate from. The container gets one address from each outer list, so two lists give it an IPv4
		// and an IPv6 address. An inner list has ranges of one family, which are used in order. Example: [[{"subnet":
		// "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]].
		Ranges [][]ipam.Range `json:"ranges"`
		// Routes of the container, which become part of the result. Default: none.
		Routes []spec.Route `json:"routes"`
		// Directory of the leases. Each network has a directory of its own in it. Default: /var/lib/cni/networks.
		DataDir string `json:"dataDir"`
		// Path of a file in the format of resolv.conf(5), from which the result's dns is made. Default: none.
		ResolvConf string `json:"resolvConf"`
		// Time that a released address is not allocated again while others are free: a duration such as "30s", or a
		// number of seconds. Default: 30s.
		ReleaseCooldown sticky.Duration `json:"releaseCooldown"`
		// Addresses, and subnets, that are allocated only to containers that ask for one of them. Default: none.
		Reserved []string `json:"reserved" want:"subnet|address" says:"an address or a subnet, such as 10.1.0.5 or 2001:db8::/120"`
		// Give successive containers with the same key the same addresses. Default: every container gets any free
		// address.
		Sticky *sticky.Conf `json:"sticky"`
	} `json:"ipam"`
	RuntimeConfig struct {
		// Addresses to allocate, at most one from each outer list of ranges, set by the runtime. A prefix length is
		// ignored; the range's counts.
		IPs []string `json:"ips"`
		// Ranges to allocate from before ipam.ranges, set by the runtime, in the same format.
		IPRanges [][]ipam.Range `json:"ipRanges"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			// Addresses to allocate, in addition to runtimeConfig.ips. If the key is missing, IP of CNI_ARGS is used.
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

func open(c conf, r *sdk.Request) (ipam.Allocator, error) {
	l := local{disk.Store{DataDir: c.IPAM.DataDir, Cooldown: c.IPAM.ReleaseCooldown.Or(30 * time.Second),
		Netns: r.Netns}, c.IPAM.Routes, c.IPAM.ResolvConf}
	var err error // who holds what is known without the ranges
	if l.Sets, err = ipam.Complete(c.sets()); err != nil {
		return &l, err
	}
	if err := sayable(l.Sets, r.Version); err != nil {
		return &l, err
	}
	if l.Reserved, err = c.reserved(); err != nil {
		return &l, err
	}
	if l.Sticky, err = c.IPAM.Sticky.Of(r); err != nil {
		return &l, err
	}
	l.Requested, err = c.requested(r, l.Sets)
	return &l, err
}

// sets are the pools, in the order that numbers their last_reserved_ip files.
func (c conf) sets() []ipam.Set {
	var sets []ipam.Set
	add := func(path string, lists [][]ipam.Range) {
		for i, ranges := range lists {
			sets = append(sets, ipam.Set{Path: path + "[" + strconv.Itoa(i) + "]", Ranges: ranges})
		}
	}
	add("runtimeConfig.ipRanges", c.RuntimeConfig.IPRanges)
	if c.IPAM.Range != (ipam.Range{}) {
		sets = append(sets, ipam.Set{Path: "ipam", Ranges: []ipam.Range{c.IPAM.Range}})
	}
	add("ipam.ranges", c.IPAM.Ranges)
	return sets
}

// sayable refuses what a result of before 0.3.0 has no room for.
func sayable(sets []ipam.Set, v spec.Version) error {
	for i, s := range sets {
		for _, before := range sets[:i] {
			if s.Is4() == before.Is4() && !v.AtLeast(spec.V030) {
				return spec.Errorf(spec.CodeConfig,
					"%s: cniVersion %s allows only one address per family, and %s gives another",
					s.Path, v, before.Path)
			}
		}
	}
	return nil
}

// reserved are the addresses that the configuration keeps back.
func (c conf) reserved() ([]netip.Prefix, error) {
	var ps []netip.Prefix
	for i, s := range c.IPAM.Reserved {
		p, err := ipam.ParseReserved(s)
		if err != nil {
			return nil, spec.Errorf(spec.CodeConfig, "ipam.reserved[%d]: %w", i, err)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// requested are the addresses that are asked for.
func (c conf) requested(r *sdk.Request, sets []ipam.Set) ([]netip.Addr, error) {
	ofEnv, _ := r.Arg("IP")
	return ipam.Requested(c.RuntimeConfig.IPs, c.Args.CNI.IPs, ofEnv, func(path string, a netip.Addr) error {
		return ipam.Requestable(path, a, sets)
	})
}

// local is the store, and what the result has beside addresses.
type local struct {
	disk.Store
	routes     []spec.Route
	resolvConf string
}

func (l *local) Allocate(ctx context.Context, o spec.Owner) (*spec.Result, error) {
	dns, err := l.dns()
	if err != nil {
		return nil, err
	}
	res, err := l.Store.Allocate(ctx, o)
	if err != nil {
		return nil, err
	}
	res.Routes, res.DNS = l.routes, dns
	return res, nil
}

// Status adds what Allocate needs beside addresses.
func (l *local) Status(ctx context.Context, network string) error {
	if _, err := l.dns(); err != nil {
		return err
	}
	return l.Store.Status(ctx, network)
}

// Forecast implements ipam.Forecaster.
func (l *local) Forecast() (*spec.Result, []ipam.Set) {
	res := &spec.Result{Routes: l.routes}
	for _, set := range l.Sets {
		if ip, ok := set.First(ipam.Union(l.Reserved)); ok {
			res.IPs = append(res.IPs, ip)
		}
	}
	return res, l.Sets
}

// Gateways implements ipam.Gatewayer.
func (l *local) Gateways() (all [][]spec.IP) {
	for _, s := range l.Sets {
		var choices []spec.IP
		for _, r := range s.Ranges {
			choices = append(choices, spec.IP{Address: netip.PrefixFrom(r.RangeStart, r.Subnet.Bits()),
				Gateway: r.Gateway})
		}
		all = append(all, choices)
	}
	return all
}
