// Package static uses the addresses that the configuration or the runtime names. It keeps no record of them: the
// administrator must make sure that no two containers have the same address.
//
// The plugin uses the first of these that names addresses: `runtimeConfig.ips`; `args.cni.ips`; else `ipam.addresses`
// and, after them, `IP` in CNI_ARGS (`IP=192.0.2.5/24,2001:db8::5/64`). An address is written with the prefix length
// of its subnet. In `runtimeConfig.ips`, `args.cni.ips` and `IP` the length may be left out if the address is in the
// subnet of one of `ipam.addresses`; the length and gateway are then those of that entry. An address that is written
// with a length there has no gateway, as with the reference.
//
// `GATEWAY` in CNI_ARGS (`GATEWAY=192.0.2.1,2001:db8::1`) is the gateway of each address of `IP` whose subnet contains
// it, and of entries of `ipam.addresses` that have no gateway. The interface plugin gets the same CNI_ARGS, and some
// interface plugins (bridge, macvlan, macvtap, tap) reject unknown keys: add `IgnoreUnknown=1`.
package static

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the static plugin.
var Plugin = sdk.Allocator("static", "uses addresses that the configuration or the runtime names", open).KnowsArgs("IP",
	"GATEWAY")

type conf struct {
	IPAM *struct {
		// The word static.
		Type      string    `json:"type"`
		Addresses []address `json:"addresses"`
		// Routes of the container, which become part of the result. Default: none.
		Routes []spec.Route `json:"routes"`
		// DNS settings of the container, which become part of the result. Default: none.
		DNS spec.DNS `json:"dns"`
	} `json:"ipam"`
	RuntimeConfig struct {
		// Addresses to use instead of all others, set by the runtime.
		IPs []string `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			// Addresses to use instead of ipam.addresses and of IP in CNI_ARGS.
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

type address struct {
	// Address with the prefix length of its subnet, such as 192.0.2.5/24 or 2001:db8::5/64. Required.
	Address netip.Prefix `json:"address"`
	// Gateway of the address. Default: none.
	Gateway netip.Addr `json:"gateway"`
}

func open(c conf, r *sdk.Request) (ipam.Allocator, error) {
	if c.IPAM == nil {
		return given{}, bad("ipam", "is missing")
	}
	ips, err := c.addresses(r)
	if err == nil {
		err = sayable(ips, r.Version)
	}
	return given{spec.Result{IPs: ips, Routes: c.IPAM.Routes, DNS: c.IPAM.DNS}, c.ownGateways()}, err
}

// addresses are those that the attachment gets.
func (c conf) addresses(r *sdk.Request) ([]spec.IP, error) {
	var fixed []spec.IP
	for i, a := range c.IPAM.Addresses {
		path := "ipam.addresses[" + strconv.Itoa(i) + "]"
		if !a.Address.IsValid() {
			return nil, bad(path+".address", "is missing: want an address with the prefix length of its subnet, such "+
				"as 192.0.2.5/24")
		}
		ip, err := usable(path+".address", a.Address)
		if err != nil {
			return nil, err
		}
		gw := a.Gateway.Unmap()
		if gw.IsValid() && gw.Is4() != ip.Addr().Is4() {
			return nil, bad(path+".gateway", "%s is not of the family of %s", gw, ip)
		}
		fixed = append(fixed, spec.IP{Address: ip, Gateway: gw})
	}
	for _, place := range []struct {
		path string
		ips  []string
	}{{"runtimeConfig.ips", c.RuntimeConfig.IPs}, {"args.cni.ips", c.Args.CNI.IPs}} {
		if len(place.ips) > 0 {
			return runtimeAddrs(place.path, place.ips, fixed)
		}
	}
	asked, err := runtimeAddrs("CNI_ARGS: IP", words(r, "IP"), fixed)
	if err != nil {
		return nil, err
	}
	return gateways(words(r, "GATEWAY"), fixed, asked)
}

// words are the parts of a list in CNI_ARGS.
func words(r *sdk.Request, key string) []string {
	if v, _ := r.Arg(key); v != "" {
		return strings.Split(v, ",")
	}
	return nil
}

// mostAddresses is how many addresses a runtime may name: each is compared with each.
const mostAddresses = 256

// runtimeAddrs reads addresses that a runtime names.
func runtimeAddrs(path string, list []string, fixed []spec.IP) ([]spec.IP, error) {
	if len(list) > mostAddresses {
		return nil, bad(path, "%d addresses: want at most %d", len(list), mostAddresses)
	}
	var ips []spec.IP
	for i, s := range list {
		path := path
		if !strings.HasPrefix(path, "CNI_ARGS") {
			path += "[" + strconv.Itoa(i) + "]"
		}
		s = strings.TrimSpace(s)
		var ip spec.IP
		if p, err := netip.ParsePrefix(s); err == nil {
			ip.Address = p
		} else if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			a = a.Unmap()
			n := slices.IndexFunc(fixed, func(f spec.IP) bool { return f.Address.Contains(a) })
			if n < 0 {
				return nil, bad(path, "%q has no prefix length, and no subnet of ipam.addresses contains it: write "+
					"it as %s/%d, with the prefix length of its subnet", s, a, a.BitLen()*3/4)
			}
			ip = spec.IP{Address: netip.PrefixFrom(a, fixed[n].Address.Bits()), Gateway: fixed[n].Gateway}
			if ip.Gateway == a {
				return nil, bad(path, "%q: is the gateway of %s: want another address of that subnet", s,
					fixed[n].Address.Masked())
			}
		} else {
			return nil, bad(path, "%q: want an address with the prefix length of its subnet, such as "+
				"192.0.2.5/24 or 2001:db8::5/64", s)
		}
		var err error
		if ip.Address, err = usable(path, ip.Address); err != nil {
			return nil, err
		}
		ips = add(ips, ip)
	}
	return ips, nil
}

// usable is p as a container can have it.
func usable(path string, p netip.Prefix) (netip.Prefix, error) {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	if why := ipam.NoHost(p); why != "" {
		return p, bad(path, "%s %s", p, why)
	}
	return p, nil
}

// add appends ip, unless it is there: the kernel takes an address once.
func add(ips []spec.IP, ip spec.IP) []spec.IP {
	for i, have := range ips {
		if have.Address == ip.Address {
			if ip.Gateway.IsValid() {
				ips[i].Gateway = ip.Gateway
			}
			return ips
		}
	}
	return append(ips, ip)
}

// gateways joins the addresses of the configuration with those of CNI_ARGS, and gives them the gateways of CNI_ARGS.
func gateways(list []string, fixed, asked []spec.IP) ([]spec.IP, error) {
	for _, s := range list {
		gw, err := netip.ParseAddr(strings.TrimSpace(s))
		if gw = gw.Unmap(); err != nil || gw.Zone() != "" {
			return nil, bad("CNI_ARGS: GATEWAY", "%q: want an address, such as 192.0.2.1 or 2001:db8::1", s)
		}
		used := false
		for i, ip := range asked {
			if ip.Address.Contains(gw) {
				if asked[i].Gateway, used = gw, true; gw == ip.Address.Addr() {
					return nil, itself(gw, ip)
				}
			}
		}
		for i, ip := range fixed {
			if ip.Address.Contains(gw) {
				if used = true; !ip.Gateway.IsValid() {
					if fixed[i].Gateway = gw; gw == ip.Address.Addr() {
						return nil, itself(gw, ip)
					}
				}
			}
		}
		if !used {
			return nil, bad("CNI_ARGS: GATEWAY", "%s is not in the subnet of any address", gw)
		}
	}
	var ips []spec.IP
	for _, ip := range append(fixed, asked...) {
		ips = add(ips, ip)
	}
	return ips, nil
}

func itself(gw netip.Addr, ip spec.IP) error {
	return bad("CNI_ARGS: GATEWAY",
		"%s is the container's own address: want another address of %s, or none", gw, ip.Address.Masked())
}

// sayable refuses what a result of before 0.3.0 has no room for.
func sayable(ips []spec.IP, v spec.Version) error {
	for i, ip := range ips {
		for _, before := range ips[:i] {
			if ip.Address.Addr().Is4() == before.Address.Addr().Is4() && !v.AtLeast(spec.V030) {
				return bad("ipam", "%s and %s: cniVersion %s allows only one address per family", before.Address,
					ip.Address, v)
			}
		}
	}
	return nil
}

func bad(path, format string, args ...any) error {
	return spec.Errorf(spec.CodeConfig, path+": "+format, args...)
}

// given is what there is to give.
type given struct {
	res         spec.Result
	ownGateways map[string]netip.Prefix // addresses that are their own gateways, by key
}

// ownGateways are configured addresses that are their own gateways, which the reference takes, and which does no harm
// without a route by one.
func (c conf) ownGateways() map[string]netip.Prefix {
	own := map[string]netip.Prefix{}
	for i, a := range c.IPAM.Addresses {
		if a.Gateway.IsValid() && a.Gateway.Unmap() == a.Address.Addr().Unmap() {
			own["ipam.addresses["+strconv.Itoa(i)+"].gateway"] = a.Address
		}
	}
	return own
}

// Allocate implements ipam.Allocator.
func (g given) Allocate(_ context.Context, o spec.Owner) (*spec.Result, error) {
	for key, ip := range g.ownGateways {
		slog.Warn("an address is its own gateway: the kernel refuses routes through it, and a bridge with isGateway "+
			"would have the same address",
			"network", o.Network, "key", key, "address", ip)
	}
	return g.res.Clone(), nil
}
func (given) Release(context.Context, spec.Owner) error         { return nil }
func (given) Sweep(context.Context, string, []spec.Owner) error { return nil }
func (given) Status(context.Context, string) error              { return nil } // a configuration that can be read

// Verify finds each address in the chain's result, with the gateway that was said. Whether the link has it is
// for the plugin that made the link.
func (g given) Verify(_ context.Context, _ spec.Owner, prev *spec.Result) error {
	if prev == nil {
		return bad("prevResult", "is missing: CHECK compares the configuration with it")
	}
	var errs []error
	for _, ip := range g.res.IPs {
		i := slices.IndexFunc(prev.IPs, func(p spec.IP) bool { return p.Address == ip.Address })
		switch {
		case i < 0:
			errs = append(errs, spec.DiffersBy("address", "address %s: is missing in prevResult", ip.Address))
		case ip.Gateway.IsValid() && prev.IPs[i].Gateway.Unmap() != ip.Gateway:
			errs = append(errs, spec.DiffersBy("gateway", "address %s: its gateway is %s in prevResult, want %s",
				ip.Address,
				said(prev.IPs[i].Gateway), ip.Gateway))
		}
	}
	return errors.Join(errs...)
}

func said(a netip.Addr) string {
	if !a.IsValid() {
		return "none"
	}
	return a.String()
}

// Gateways implements ipam.Gatewayer.
func (g given) Gateways() (all [][]spec.IP) {
	for _, ip := range g.res.IPs {
		all = append(all, []spec.IP{ip})
	}
	return all
}

// Forecast implements ipam.Forecaster.
func (g given) Forecast() (*spec.Result, []ipam.Set) { return g.res.Clone(), nil }
