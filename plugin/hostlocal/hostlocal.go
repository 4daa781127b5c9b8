// Package hostlocal gives out addresses from ranges, and keeps on this host who has which.
package hostlocal

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/ipam/disk"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// Plugin is the host-local plugin.
var Plugin = sdk.Allocator("host-local", "gives out addresses from ranges of this host", open).KnowsArgs("IP")

type conf struct {
	IPAM struct {
		Type            string         `json:"type"` // host-local
		ipam.Range                     // a lone range
		Ranges          [][]ipam.Range `json:"ranges"`          // an address from each outer list; the inner one is a pool of ranges
		Routes          []spec.Route   `json:"routes"`          // put in the result
		DataDir         string         `json:"dataDir"`         // where the leases are kept; default /var/lib/cni/networks
		ResolvConf      string         `json:"resolvConf"`      // a resolv.conf to make the result's dns from
		ReleaseCooldown duration       `json:"releaseCooldown"` // how long a released address rests while others are free; default 30s
	} `json:"ipam"`
	RuntimeConfig struct {
		IPs      []string       `json:"ips"`      // addresses that are wanted, with or without a prefix (clause K5)
		IPRanges [][]ipam.Range `json:"ipRanges"` // further ranges, which come first (clause K2)
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"` // the same as runtimeConfig.ips; beats the IP of CNI_ARGS
		} `json:"cni"`
	} `json:"args"`
}

func open(c conf, r *sdk.Request) (ipam.Allocator, error) {
	l := local{&disk.Store{DataDir: c.IPAM.DataDir, Cooldown: 30 * time.Second, Netns: r.Netns}, c.IPAM.Routes, c.IPAM.ResolvConf}
	if r.Verb == "DEL" || r.Verb == "GC" {
		return l, nil // who holds what is known without the ranges
	}
	if c.IPAM.ReleaseCooldown.set {
		l.Cooldown = c.IPAM.ReleaseCooldown.Duration
	}
	var err error
	if l.Sets, err = ipam.Complete(c.sets()); err != nil {
		return nil, err
	}
	if !r.Version.AtLeast(spec.V030) {
		for i, s := range l.Sets {
			for _, before := range l.Sets[:i] {
				if s.Is4() == before.Is4() {
					return nil, spec.Errorf(spec.CodeConfig, "%s: cniVersion %s can say one address of a family, and %s gives one too", s.Path, r.Version, before.Path)
				}
			}
		}
	}
	asked := append(c.RuntimeConfig.IPs, c.Args.CNI.IPs...)
	if ip, ok := r.Arg("IP"); ok && len(c.Args.CNI.IPs) == 0 && ip != "" {
		asked = append(asked, ip)
	}
	for _, s := range asked {
		a, err := ipam.ParseRequest(s)
		if err != nil {
			return nil, err
		}
		l.Requested = append(l.Requested, a)
	}
	return l, nil
}

// sets are the pools, in the order that numbers their last_reserved_ip files.
func (c conf) sets() []ipam.Set {
	var sets []ipam.Set
	add := func(path string, list [][]ipam.Range) {
		for i, ranges := range list {
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

// local is the store, and what the result has beside addresses.
type local struct {
	*disk.Store
	routes     []spec.Route
	resolvConf string
}

func (l local) Allocate(ctx context.Context, o spec.Owner) (*spec.Result, error) {
	var dns spec.DNS
	if l.resolvConf != "" {
		text, err := os.ReadFile(l.resolvConf)
		if err != nil {
			return nil, spec.Errorf(spec.CodeConfig, "ipam.resolvConf: %w", err)
		}
		dns = ipam.ParseResolvConf(string(text))
	}
	res, err := l.Store.Allocate(ctx, o)
	if err != nil {
		return nil, err
	}
	res.Routes, res.DNS = l.routes, dns
	return res, nil
}

// duration is "30s", or a number of seconds.
type duration struct {
	time.Duration
	set bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *duration) UnmarshalJSON(b []byte) (err error) {
	var text string
	var n float64
	switch {
	case json.Unmarshal(b, &n) == nil:
		d.Duration = time.Duration(n * float64(time.Second))
	case json.Unmarshal(b, &text) != nil:
		return fmt.Errorf("want a duration such as \"30s\", or seconds")
	case text == "":
		return nil
	default:
		if d.Duration, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("want a duration such as \"30s\", or seconds")
		}
	}
	if d.set = true; d.Duration < 0 {
		return fmt.Errorf("want 0 or more")
	}
	return nil
}
