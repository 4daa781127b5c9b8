package sdk

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Request is one call, decoded, as a plan function sees it. It is all that a plan may depend on beside
// the configuration. Each time that a plan function is asked, it has a copy of its own.
type Request struct {
	spec.Owner
	Version spec.Version // of the configuration
	Netns   string       // CNI_NETNS as it was given
	L3      bool         // an IPAM plugin is configured

	// Prev is the previous plugin's result in ADD, the final one in CHECK and DEL; nil where there is none.
	Prev *spec.Result

	// IPs and Routes are the attachment's: the allocator's in ADD (none while they are not known), those
	// of Prev in CHECK. See Answer for a plan function that completes them.
	IPs    []spec.IP
	Routes []spec.Route

	// Ledger is the number of the allocator's ledger, see ipam.Witness; 0: it has none, or the address was asked for by
	// name.
	Ledger int64

	Links

	verb string // ADD, CHECK, DEL, GC or STATUS; what is different in them is the engine's and not a plugin's
	conf *spec.Conf
	args [][2]string

	mac, hostMAC string // the owner's own, of the two ends; only of a plugin that makes links
}

// OnOtherLink reports whether the plugins before made the container's interface and no link on the host that leads to
// it, as far as they say: what comes for it passes the host by.
func (r *Request) OnOtherLink() bool {
	return r.InContainer() && r.Peer == nil && len(r.HostLinks) == 0 && len(r.hostSide()) == 0
}

// Links are what the kernel says of links on the host in ADD and CHECK. A dry run has only those that the plugins
// before would make, so that empty ones alone are no reason to refuse (see OnOtherLink).
type Links struct {
	// HostLinks are the links without a sandbox in Prev that exist: candidates for what the conventions
	// call chained use (clause P23). Missing are the names of the others.
	HostLinks []HostLink
	Missing   []string

	// Peer is the other end of the container's veth, whether Prev lists it or not; nil where that is not on the host.
	Peer *HostLink

	// Policed is the bridge, or the gateway of its VLAN, that the attachment has a policy on, by what it recorded: in
	// CHECK, where Peer is a port of no bridge any more; else empty.
	Policed string
}

// A HostLink is a link on the host, and what the kernel says of it.
type HostLink = resource.HostLink

// IsVLANGateway reports whether a link is the one by which the host is in a VLAN of a bridge that is listed with it:
// BRIDGE.VLAN, as plugin bridge makes it and lists it. It is shared by all who are in the VLAN.
func (r *Request) IsVLANGateway(l HostLink) bool {
	dot := strings.LastIndexByte(l.Name, '.')
	if dot < 0 || l.Kind != "veth" || l.Master != "" {
		return false
	}
	_, err := strconv.ParseUint(l.Name[dot+1:], 10, 12)
	return err == nil && slices.ContainsFunc(r.HostLinks,
		func(br HostLink) bool { return br.Kind == "bridge" && br.Name == l.Name[:dot] })
}

// Arg is the value of a key of CNI_ARGS. Where the same thing can be said in several places, args.cni
// beats CNI_ARGS and runtimeConfig beats both.
func (r *Request) Arg(key string) (string, bool) {
	for _, kv := range r.args {
		if kv[0] == key {
			return kv[1], true
		}
	}
	return "", false
}

// Args are CNI_ARGS.
func (r *Request) Args() string {
	pairs := make([]string, len(r.args))
	for i, kv := range r.args {
		pairs[i] = kv[0] + "=" + kv[1]
	}
	return strings.Join(pairs, ";")
}

// Document is the configuration as the runtime gave it, for an allocator that is a service.
func (r *Request) Document() ([]byte, error) { return r.conf.Object.MarshalJSON() }

// Told is what the runtime says of key: a string of args.cni, else of CNI_ARGS (clause K11). Empty is nothing.
func (r *Request) Told(key string) string {
	var s string
	if json.Unmarshal(r.argsCNI()[key], &s) == nil && s != "" {
		return s
	}
	s, _ = r.Arg(key)
	return s
}

// Label is the value of a label in args.cni.labels (clause K11). Empty is nothing.
func (r *Request) Label(name string) string {
	var labels []struct{ Key, Value string }
	if json.Unmarshal(r.argsCNI()["labels"], &labels) == nil {
		for _, l := range labels {
			if l.Key == name {
				return l.Value
			}
		}
	}
	return ""
}

// argsCNI is args.cni. What cannot be read there is as good as absent (clause C12).
func (r *Request) argsCNI() map[string]json.RawMessage {
	var args struct{ CNI map[string]json.RawMessage }
	if r.conf != nil {
		if raw, ok := r.conf.Object.Get("args"); ok && json.Unmarshal(raw, &args) != nil {
			return nil
		}
	}
	return args.CNI
}

// First is the first of the values, in order of precedence, that says anything.
func First(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// LinkName is the name of the owner's link on the host, beginning with prefix.
func (r *Request) LinkName(prefix string) string { return identity.LinkName(prefix, r.Owner) }

// MAC is the address of the container's link: asked, where that says anything; else one of the owner's own, which only
// the request of a plugin made by Interface has.
func (r *Request) MAC(asked string) string { return First(asked, r.mac) }

// PrevMAC is the address that Prev gives the container's interface; empty where it gives none.
func (r *Request) PrevMAC() string {
	if i := r.prevInterface(); i >= 0 {
		return r.Prev.Interfaces[i].MAC
	}
	return ""
}

// removes reports whether the call is DEL or GC, which work without a configuration.
func (r *Request) removes() bool { return r.verb == "DEL" || r.verb == "GC" }

// final is the plan that CHECK compares with: what the final result says of the container's interface counts, where a
// later plugin may have changed it (clause P16).
func (r *Request) final(p plan.Plan) plan.Plan {
	i := r.prevInterface()
	if i < 0 || r.verb != "CHECK" {
		return p
	}
	for n, res := range p {
		d, ok := res.(resource.Describer) // not what is shared, or somebody else's
		if !ok {
			continue
		}
		if final := d.Traits().Final; final != nil {
			p[n] = final(r.Prev.Interfaces[i])
		}
	}
	return p
}

// WithDefaultRoutes are the routes, and a default route by the gateway of each address, but where there is one of its
// family by a gateway. In CHECK the routes are those of the result, and nothing is added.
func (r *Request) WithDefaultRoutes() []spec.Route {
	routes := slices.Clone(r.Routes)
	if r.verb == "CHECK" {
		return routes
	}
	for _, ip := range r.IPs {
		all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if ip.Address.Addr().Is4() {
			all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		if !slices.ContainsFunc(routes, func(rt spec.Route) bool { return rt.Dst == all && rt.GW.IsValid() }) {
			routes = append(routes, spec.Route{Dst: all, GW: ip.Gateway})
		}
	}
	return routes
}

// HostMAC is the address of the owner's link on the host, as MAC has it.
func (r *Request) HostMAC() string { return r.hostMAC }

// prevInterface is the index of the container's interface in Prev, or -1.
func (r *Request) prevInterface() int {
	if r.Prev != nil {
		for i, f := range r.Prev.Interfaces {
			if f.Name == r.IfName && f.Sandbox != "" {
				return i
			}
		}
	}
	return -1
}

// InContainer reports whether a plugin before this one has made the container's interface.
func (r *Request) InContainer() bool { return r.prevInterface() >= 0 }

// ContainerIPs are the addresses in Prev of the container's interface, and those of no interface.
func (r *Request) ContainerIPs() []spec.IP {
	if r.Prev == nil {
		return nil
	}
	var ips []spec.IP
	for _, ip := range r.Prev.IPs {
		if ip.Interface != nil {
			i := *ip.Interface
			if i < 0 || i >= len(r.Prev.Interfaces) || r.Prev.Interfaces[i].Name != r.IfName ||
				r.Prev.Interfaces[i].Sandbox == "" {
				continue
			}
		}
		ips = append(ips, ip)
	}
	return ips
}

// Prefixes are the attachment's addresses, each with its subnet's length.
func (r *Request) Prefixes() []netip.Prefix {
	var ps []netip.Prefix
	for _, ip := range r.IPs {
		ps = append(ps, ip.Address)
	}
	return ps
}

// ByHand reports whether the attachment's addresses are configured, rather than allocated.
func (r *Request) ByHand() bool { return r.conf.IPAMType == "static" }

// Has6 reports whether the attachment has an IPv6 address.
func (r *Request) Has6() bool {
	for _, ip := range r.IPs {
		if ip.Address.Addr().Is6() {
			return true
		}
	}
	return false
}
