package sdk

import (
	"cmp"
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

// A Request is one decoded call. A plan may depend on it and on the configuration, and on nothing else. Each call of a
// plan function gets a copy.
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

	// Ranges has, for each subnet that the network's configuration has addresses of, one of them and its gateway. It is
	// empty if there is no more than one subnet of a family, and if the IPAM plugin is another program, or does not
	// know them before it allocates. In CHECK, it is what ADD recorded.
	Ranges []spec.IP

	// PathMTU is the size in bytes of the largest packet that reaches all addresses of the allocator's network; 0: not
	// known. In CHECK it is 0, because links keep the MTU that they were made with.
	PathMTU int

	// Ledger is the number of the allocator's ledger, see ipam.Witness; 0: it has none, or the address was asked for by
	// name.
	Ledger int64

	Links

	verb string // ADD, CHECK, DEL, GC or STATUS; what is different in them is the engine's and not a plugin's
	conf *spec.Conf
	args [][2]string

	mac, hostMAC string // the owner's own, of the two ends; only of a plugin that makes links
}

// OnOtherLink reports whether the previous plugins listed an interface of the container but no host-side interface that
// leads to it. Packets for the container then do not pass the host.
func (r *Request) OnOtherLink() bool {
	return r.InContainer() && r.Peer == nil && len(r.HostLinks) == 0 && len(r.hostSide()) == 0
}

// Links is what the kernel says in ADD and CHECK about links on the host. In a dry run it has only the links that the
// previous plugins would make, so empty Links alone are no reason to refuse a configuration (see OnOtherLink).
type Links struct {
	// HostLinks are the links without a sandbox in Prev that exist: candidates for what the conventions
	// call chained use (clause P23). Missing are the names of the others.
	HostLinks []resource.HostLink
	Missing   []string

	// Peer is the other end of the container's veth, whether Prev lists it or not; nil where that is not on the host.
	Peer *resource.HostLink

	// Policed is the bridge, or the gateway of its VLAN, that the attachment has a policy on, by what it recorded: in
	// CHECK, where Peer is a port of no bridge any more; else empty.
	Policed string

	ranges []spec.IP // of the Request, as ADD recorded them
}

// IsVLANGateway reports whether l is the host's interface in a VLAN of a listed bridge: BRIDGE.VLAN, as the bridge
// plugin makes it. All containers of the VLAN share it.
func (r *Request) IsVLANGateway(l resource.HostLink) bool {
	dot := strings.LastIndexByte(l.Name, '.')
	if dot < 0 || l.Kind != "veth" || l.Master != "" {
		return false
	}
	_, err := strconv.ParseUint(l.Name[dot+1:], 10, 12)
	return err == nil && slices.ContainsFunc(r.HostLinks,
		func(br resource.HostLink) bool { return br.Kind == "bridge" && br.Name == l.Name[:dot] })
}

// GatewayLink returns the link on the host that the container's packets come through: the bridge, or the gateway of its
// VLAN there; or a link of the container's own. Port is the container's port of the bridge, or its own link. The
// container's veth says which these are, whatever else Prev lists. Both are empty if the host has no such link.
func (r *Request) GatewayLink() (link, port string) {
	bridge := ""
	if r.Peer != nil {
		bridge = r.Peer.Master
	}
	for _, l := range r.HostLinks {
		switch {
		case r.Peer == nil && l.Kind == "bridge" && bridge == "":
			bridge = l.Name
		case r.IsVLANGateway(l):
			link = l.Name
		}
	}
	if r.Peer != nil {
		switch {
		case r.Policed != "":
			link = r.Policed
		case bridge == "":
			link = r.Peer.Name
		}
		return cmp.Or(link, bridge), r.Peer.Name
	}
	link = cmp.Or(link, bridge)
	for _, l := range r.HostLinks {
		switch {
		case l.Kind == "bridge", r.IsVLANGateway(l):
		case link == "":
			return cmp.Or(l.Master, l.Name), l.Name
		case l.Master == bridge:
			return link, l.Name
		}
	}
	return link, ""
}

// Arg returns the value of a key in CNI_ARGS. If a value can be set in several places, args.cni takes precedence over
// CNI_ARGS, and runtimeConfig over both.
func (r *Request) Arg(key string) (string, bool) {
	for _, kv := range r.args {
		if kv[0] == key {
			return kv[1], true
		}
	}
	return "", false
}

// Args returns CNI_ARGS unchanged.
func (r *Request) Args() string {
	pairs := make([]string, len(r.args))
	for i, kv := range r.args {
		pairs[i] = kv[0] + "=" + kv[1]
	}
	return strings.Join(pairs, ";")
}

// Document returns the configuration as the runtime sent it, for an allocator that passes it to a service.
func (r *Request) Document() ([]byte, error) { return r.conf.Object.MarshalJSON() }

// CNIArg returns the value of key in args.cni, if it is a string, else in CNI_ARGS (clause K11). It is empty if neither
// has the key.
func (r *Request) CNIArg(key string) string {
	var s string
	if json.Unmarshal(r.argsCNI()[key], &s) == nil && s != "" {
		return s
	}
	s, _ = r.Arg(key)
	return s
}

// Label returns the value of a label in args.cni.labels (clause K11), or an empty string.
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

// argsCNI returns args.cni. Values that cannot be read count as absent (clause C12).
func (r *Request) argsCNI() map[string]json.RawMessage {
	var args struct{ CNI map[string]json.RawMessage }
	if r.conf != nil {
		if raw, ok := r.conf.Object.Get("args"); ok && json.Unmarshal(raw, &args) != nil {
			return nil
		}
	}
	return args.CNI
}

// Written returns the path of a key as the configuration spells it, such as "args.cni.addRoutes": keys match in any
// case. A key that is missing keeps its spelling.
func (r *Request) Written(path ...string) string {
	object := r.conf.Object
	written := make([]string, len(path))
	for i, key := range path {
		written[i] = writtenKey(object, key)
		raw, _ := object.Get(written[i])
		object, _ = spec.ParseObject(raw)
	}
	return strings.Join(written, ".")
}

// writtenKey returns the key of an object that stands for key. As in decoding, the exact one is preferred, and then the
// last in the order of names.
func writtenKey(o spec.Object, key string) string {
	var others []string
	for k := range o.All() {
		switch {
		case k == key:
			return key
		case strings.EqualFold(k, key):
			others = append(others, k)
		}
	}
	if len(others) == 0 {
		return key
	}
	return slices.Max(others)
}

// LinkName returns a name with this prefix for a link of the owner on the host.
func (r *Request) LinkName(prefix string) string { return identity.LinkName(prefix, r.Owner) }

// MAC returns the MAC of the container interface: asked, or, if that is empty, one that derives from the owner. Only
// plugins made by Interface have the latter.
func (r *Request) MAC(asked string) string { return cmp.Or(asked, r.mac) }

// PrevMAC returns the MAC of the container interface in Prev, or an empty string.
func (r *Request) PrevMAC() string {
	if i := r.prevInterface(); i >= 0 {
		return r.Prev.Interfaces[i].MAC
	}
	return ""
}

// removes reports whether the call is DEL or GC, which work without a configuration.
func (r *Request) removes() bool { return removes(r.verb) }

func removes(verb string) bool { return verb == "DEL" || verb == "GC" }

// final returns the plan that CHECK compares with. What the final result says about the container interface counts,
// because a later plugin may have changed it (clause P16).
func (r *Request) final(p plan.Plan) plan.Plan {
	i := r.prevInterface()
	if i < 0 || r.verb != "CHECK" {
		return p
	}
	for n, res := range p {
		d, ok := res.(resource.Describer) // not what is shared, or another program's
		if !ok {
			continue
		}
		if final := d.Traits().Final; final != nil {
			p[n] = final(r.Prev.Interfaces[i])
		}
	}
	return p
}

// WithDefaultRoutes returns the routes and, for each family without a default route through a gateway, one through the
// gateway of each address. In CHECK it adds nothing, because the result already has the routes.
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

// HostMAC returns the MAC of the owner's link on the host, derived like that of MAC.
func (r *Request) HostMAC() string { return r.hostMAC }

// prevInterface returns the index of the container interface in Prev, or -1.
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

// InContainer reports whether a previous plugin made the container interface.
func (r *Request) InContainer() bool { return r.prevInterface() >= 0 }

// ContainerIPs returns the addresses in Prev that belong to the container interface or to no interface.
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

// Prefixes returns the attachment's addresses, each with the prefix length of its subnet.
func (r *Request) Prefixes() []netip.Prefix {
	var ps []netip.Prefix
	for _, ip := range r.IPs {
		ps = append(ps, ip.Address)
	}
	return ps
}

// ByHand reports whether the attachment's addresses are configured (static) and not allocated.
func (r *Request) ByHand() bool { return r.conf.IPAMType == "static" }

// OfCluster reports whether the attachment's addresses are of the range that a cluster gave this node.
func (r *Request) OfCluster() bool { return r.conf.IPAMType == "cluster" }

// Has6 reports whether the attachment has an IPv6 address.
func (r *Request) Has6() bool {
	for _, ip := range r.IPs {
		if ip.Address.Addr().Is6() {
			return true
		}
	}
	return false
}
