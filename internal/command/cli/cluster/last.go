package cluster

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// last returns what a node has of its agent when that does not answer: the nodes of the agent's file, the name and the
// MTU of the grant, and the ways that the kernel has.
func last(network string) (*agentstatus.Status, error) {
	s, err := agentstatus.Last(network)
	if err != nil {
		return nil, err
	}
	g, err := grant.Read(network)
	if err != nil {
		s.Problems = append(s.Problems, agentstatus.Problem{Kind: agentstatus.NotGranted, Text: err.Error()})
		g = new(grant.Grant)
	}
	s.Node = g.Node

	host, err := kernel.Open("")
	if err != nil {
		return nil, err
	}
	defer host.Close()
	routes, err := clusterRoutes(host)
	if err != nil {
		return nil, err
	}
	index := map[int]agentstatus.Way{}
	if s.Devices, err = devices(host, index); err != nil {
		return nil, err
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.Way = way(*n, s.Node, routes, index)
		if n.Way == agentstatus.None {
			s.Problems = append(s.Problems, agentstatus.Problem{Kind: agentstatus.NoWay, Node: n.Name,
				Text: "this node has no route to node " + n.Name + ", and no agent runs that would make one"})
		}
	}
	return s, nil
}

// clusterRoutes returns the routes that an agent has made.
func clusterRoutes(host *kernel.NS) (map[netip.Prefix]rtnl.Route, error) {
	routes := map[netip.Prefix]rtnl.Route{}
	for _, family := range []uint8{rtnl.IPv4, rtnl.IPv6} {
		list, err := rtnl.Routes(host, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable,
			Protocol: overlay.RouteProtocol})
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if r.Type == rtnl.Unicast {
				routes[r.Dst] = r
			}
		}
	}
	return routes, nil
}

// way returns the way to a node that has a route for each of its prefixes.
func way(n agentstatus.Node, self string, routes map[netip.Prefix]rtnl.Route,
	devices map[int]agentstatus.Way) agentstatus.Way {
	if n.Name == self {
		return agentstatus.Here
	}
	found := agentstatus.Direct
	for _, p := range n.Prefixes {
		r, has := routes[p]
		switch {
		case !has:
			return agentstatus.None
		case devices[r.Link] != "":
			found = devices[r.Link]
		}
	}
	if len(n.Prefixes) == 0 {
		return agentstatus.None
	}
	return found
}

// wireguard is the kind of a WireGuard device.
const wireguard = "wireguard"

// devices returns what the kernel has of an agent's devices, and sets the ways by their indices.
func devices(host *kernel.NS, ways map[int]agentstatus.Way) (list []agentstatus.Device, err error) {
	links, err := rtnl.Links(host)
	for _, l := range links {
		if !overlay.Made(l) {
			continue
		}
		d := agentstatus.Device{Name: l.Name, Kind: l.Kind, MTU: l.MTU}
		ways[l.Index] = agentstatus.WireGuard
		if v := l.Data.VXLAN; v != nil {
			d.ID, d.Port, d.Local = v.ID, v.Port, v.Local
			ways[l.Index] = agentstatus.VXLAN
		}
		list = append(list, d)
	}
	return list, err
}
