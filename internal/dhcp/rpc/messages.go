package rpc

import (
	"net"
	"net/netip"

	"github.com/fairlead-cni/fairlead/spec"
)

// DefaultSocket is the default path of the daemon's socket.
const DefaultSocket = "/run/cni/dhcp.sock"

// The methods. Allocate and Release are the reference's, from Args to Result and from Args to nothing. Ask is ours
// alone, from a Question to a Reply, and answers any verb with a code of the protocol.
const (
	Allocate = "DHCP.Allocate"
	Release  = "DHCP.Release"
	Ask      = "DHCP.Call"
)

// Args is a call of a plugin by a runtime.
type Args struct {
	ContainerID, Netns, IfName, Args, Path, NetnsOverride string

	StdinData []byte
}

// A Question is a verb of CNI, or "LS" to list the leases.
type Question struct {
	Verb string
	Args Args
}

// A Reply is the document that the verb returns, or an error with its code.
type Reply struct {
	Document []byte
	Code     uint
	Message  string
}

// A Result is the reply of Allocate: the reference's result, with addresses as in Go's package net.
type Result struct {
	CNIVersion string
	IPs        []*IPConfig
	Routes     []*Route
	DNS        DNS
}

// IPConfig, Route, IPNet and DNS are parts of a Result.
type IPConfig struct {
	Address IPNet
	Gateway []byte
}

type Route struct {
	Dst                   IPNet
	GW                    []byte
	MTU, AdvMSS, Priority int
	Table, Scope          *int
}

type IPNet struct{ IP, Mask []byte }

type DNS struct {
	Nameservers     []string
	Domain          string
	Search, Options []string
}

// NewResult converts r to the reply of Allocate. Its version is 1.0.0, because older plugins do not know 1.1.0.
func NewResult(r *spec.Result) *Result {
	out := &Result{CNIVersion: string(spec.V100), DNS: DNS(r.DNS)}
	for _, ip := range r.IPs {
		out.IPs = append(out.IPs, &IPConfig{ipNet(ip.Address), ip.Gateway.AsSlice()})
	}
	for _, rt := range r.Routes {
		out.Routes = append(out.Routes, &Route{ipNet(rt.Dst), rt.GW.AsSlice(), rt.MTU, rt.AdvMSS, rt.Priority, rt.Table,
			rt.Scope})
	}
	return out
}

func ipNet(p netip.Prefix) IPNet {
	return IPNet{p.Addr().AsSlice(), net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Spec converts r to a result of the specification.
func (r *Result) Spec() *spec.Result {
	out := &spec.Result{DNS: spec.DNS(r.DNS)}
	for _, ip := range r.IPs {
		if p := ip.Address.prefix(); p.IsValid() {
			out.IPs = append(out.IPs, spec.IP{Address: p, Gateway: addr(ip.Gateway)})
		}
	}
	for _, rt := range r.Routes {
		if p := rt.Dst.prefix(); p.IsValid() {
			out.Routes = append(out.Routes, spec.Route{Dst: p, GW: addr(rt.GW), MTU: rt.MTU, AdvMSS: rt.AdvMSS,
				Priority: rt.Priority, Table: rt.Table, Scope: rt.Scope})
		}
	}
	return out
}

func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}

func (n IPNet) prefix() netip.Prefix {
	ones, size := net.IPMask(n.Mask).Size()
	a := addr(n.IP)
	if size == 128 && a.Is4() {
		ones -= 96
	}
	return netip.PrefixFrom(a, ones)
}
