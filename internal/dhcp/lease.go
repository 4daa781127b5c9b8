// Package dhcp defines leases and the protocols that get them. It contains neither sockets nor the daemon.
package dhcp

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/spec"
)

// Forever is an unlimited lifetime (0xffffffff in messages).
const Forever = time.Duration(math.MaxInt64)

// A Lease is what the servers of one family gave to one owner, with its lifetimes. It is stored in a file as JSON, so
// new fields may be added, and the meaning of a field never changes.
//
// All durations count from Asked.
type Lease struct {
	// Addresses are the owner's own. DHCPv4 has one.
	Addresses []Address `json:"addresses"`

	// Delegated are prefixes that the owner may do with as it likes (DHCPv6's IA_PD).
	Delegated []Address `json:"delegated,omitempty"`

	Gateway netip.Addr        `json:"gateway,omitzero"`
	Routes  []spec.Route      `json:"routes,omitempty"` // in the order of the server, the default route among them
	DNS     spec.DNS          `json:"dns,omitzero"`
	MTU     int               `json:"mtu,omitempty"`
	NTP     []netip.Addr      `json:"ntp,omitempty"`
	Asked   time.Time         `json:"asked"` // when the request was sent that the server answered
	T1      time.Duration     `json:"t1"`    // then its server is asked to renew it
	T2      time.Duration     `json:"t2"`    // then any server is
	Valid   time.Duration     `json:"valid"` // then it is over; the longest of Addresses and Delegated
	Server  Server            `json:"server,omitzero"`
	Link    string            `json:"link"`            // name of the link in the owner's namespace
	MAC     string            `json:"mac"`             // its address
	State   map[string]string `json:"state,omitempty"` // what else the protocol wants to find again
}

// An Address is an address or a delegated prefix, with the prefix length that it gets on the link.
type Address struct {
	Prefix    netip.Prefix  `json:"prefix"`
	Preferred time.Duration `json:"preferred,omitempty"` // zero: as long as it is valid; not at all is a nanosecond
	Valid     time.Duration `json:"valid"`
}

// A Server is the server that gave a lease.
type Server struct {
	// DHCPv4's server identifier, or where DHCPv6 and router advertisements came from
	Addr netip.Addr `json:"addr,omitzero"`
	MAC  string     `json:"mac,omitempty"` // the frame's sender: the server, or the router that it is behind
	ID   []byte     `json:"id,omitempty"`  // DHCPv6's DUID
}

// Over returns when the lease expires, or the zero time if it never does.
func (l *Lease) Over() time.Time { return l.at(l.Valid) }

func (l *Lease) at(d time.Duration) time.Time {
	if d == Forever {
		return time.Time{}
	}
	return l.Asked.Add(d)
}

// Prefixes returns the addresses without their lifetimes.
func (l *Lease) Prefixes() []netip.Prefix {
	var ps []netip.Prefix
	for _, a := range l.Addresses {
		ps = append(ps, a.Prefix)
	}
	return ps
}

// SameConfiguration reports whether both leases give the link and the result the same configuration.
func (l *Lease) SameConfiguration(o *Lease) bool {
	return slices.Equal(l.Prefixes(), o.Prefixes()) && l.Gateway == o.Gateway &&
		slices.EqualFunc(l.Routes, o.Routes, func(a, b spec.Route) bool { return a.Dst == b.Dst && a.GW == b.GW })
}

// Result adds the lease to a result of ADD. A metric of 0 means the kernel's default.
func (l *Lease) Result(res *spec.Result, metric int) {
	for _, a := range l.Addresses {
		ip := spec.IP{Address: a.Prefix}
		if l.Gateway.IsValid() && l.Gateway.Is4() == a.Prefix.Addr().Is4() {
			ip.Gateway = l.Gateway
		}
		res.IPs = append(res.IPs, ip)
	}
	for _, r := range l.Routes {
		r.Priority = cmp.Or(r.Priority, metric)
		res.Routes = append(res.Routes, r)
	}
	for _, s := range l.DNS.Nameservers {
		if !slices.Contains(res.DNS.Nameservers, s) {
			res.DNS.Nameservers = append(res.DNS.Nameservers, s)
		}
	}
	for _, s := range l.DNS.Search {
		if !slices.Contains(res.DNS.Search, s) {
			res.DNS.Search = append(res.DNS.Search, s)
		}
	}
	if res.DNS.Domain == "" {
		res.DNS.Domain = l.DNS.Domain
	}
}
