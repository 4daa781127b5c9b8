package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/fairlead-cni/fairlead/agentstatus"
	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/cluster/probe"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// paths are what tests of the paths to other nodes found, by the names of nodes.
type paths struct {
	prober *probe.Prober // nil: nothing is tested

	mu    sync.Mutex
	found map[string]agentstatus.Path
	mtus  map[string]int // in bytes, where packets of the length that the way has do not pass
}

// startTests tests the paths to other nodes until ctx ends; it returns what waits for that end. An MTU that is another
// one is an event.
func (a *Agent) startTests(ctx context.Context, events chan<- struct{}) (wait func()) {
	if a.ProbePort == 0 {
		return func() {}
	}
	p := &a.paths
	p.found, p.mtus = map[string]agentstatus.Path{}, a.routeMTUs()
	p.prober = probe.New(a.World.Host, a.ProbePort, func(node string, path agentstatus.Path, mtu int) {
		former, changed := p.learn(node, path, mtu)
		if changed {
			select {
			case events <- struct{}{}:
			default:
			}
		}
		if former.Tested.IsZero() || former.Whole() != path.Whole() {
			a.Log.Info(pathChanged, "node", node, "whole", path.Whole(), "path", path)
		}
	})
	var running sync.WaitGroup
	running.Go(func() { p.prober.Run(ctx) })
	return running.Wait
}

// pathChanged is logged when the path to a node is whole, or is not any more.
const pathChanged = "tested the path to a node"

// learn takes the end of a test. Changed says that the MTU is another one.
func (p *paths) learn(node string, path agentstatus.Path, mtu int) (former agentstatus.Path, changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	former = p.found[node]
	p.found[node] = path
	isShort := func(in agentstatus.Inside) bool { return in.Full != agentstatus.Passed }
	if mtu == 0 && slices.ContainsFunc(path.Inside, isShort) {
		mtu = p.mtus[node] // a test that failed tells nothing of the MTU
	}
	changed = p.mtus[node] != mtu
	p.mtus[node] = mtu
	return former, changed
}

// routeMTUs returns what a former agent found, by the routes that it left.
func (a *Agent) routeMTUs() map[string]int {
	mtus := map[string]int{}
	for _, family := range []uint8{rtnl.IPv4, rtnl.IPv6} {
		routes, err := rtnl.Routes(a.World.Host, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable,
			Protocol: overlay.RouteProtocol})
		if err != nil {
			a.Log.Warn("the MTUs of the routes that are there are unknown until the paths are tested", "cause", err)
		}
		for _, r := range routes {
			i := slices.IndexFunc(a.nodes, func(n directory.Node) bool { return slices.Contains(n.Prefixes, r.Dst) })
			if r.MTU != 0 && i >= 0 {
				mtus[a.nodes[i].Name] = r.MTU
			}
		}
	}
	return mtus
}

// test says which paths are to be tested.
func (p *paths) test(self string, v view) {
	if p.prober == nil {
		return
	}
	addrs := map[string][]netip.Addr{}
	for _, n := range v.nodes {
		addrs[n.Name] = ownAddrs(n)
	}
	var peers []probe.Peer
	known := map[string]bool{}
	for _, to := range v.peers {
		known[to.Node] = true
		i := slices.IndexFunc(v.ups, func(up uplink) bool { return up.addr.Is4() == to.Endpoint.Is4() })
		if i < 0 || !v.ups[i].attached() {
			continue
		}
		peers = append(peers, probe.Peer{Node: to.Node, Local: v.ups[i].addr, Endpoint: to.Endpoint, Addrs: addrs[to.Node],
			MTU: v.ups[i].mtu})
	}
	p.prober.Set(addrs[self], peers)
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.found, func(node string, _ agentstatus.Path) bool { return !known[node] })
	maps.DeleteFunc(p.mtus, func(node string, _ int) bool { return !known[node] })
}

// ownAddrs returns the address that is tested of each family: the first one.
func ownAddrs(n directory.Node) (addrs []netip.Addr) {
	for _, a := range own(n) {
		if !slices.ContainsFunc(addrs, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// shorten gives the routes to nodes the MTUs that were found, where they are less than they would be.
func (p *paths) shorten(peers []overlay.Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range peers {
		if mtu := p.mtus[peers[i].Node]; mtu != 0 && (peers[i].MTU == 0 || mtu < peers[i].MTU) {
			peers[i].MTU = mtu
		}
	}
}

// describe adds to a status what was found.
func (p *paths) describe(s *agentstatus.Status) {
	if p.prober == nil {
		return
	}
	if err := p.prober.Err(); err != nil {
		s.Problems = append(s.Problems, agentstatus.Problem{Kind: agentstatus.Other,
			Text: "not all paths are tested: " + err.Error()})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range s.Nodes {
		n := &s.Nodes[i]
		path, tested := p.found[n.Name]
		if !tested || n.Way == agentstatus.None || len(s.Devices) == 0 {
			continue
		}
		n.Path = &path
		s.Problems = append(s.Problems, pathProblems(*n, s.Devices[0].Port, p.prober.Port)...)
	}
}
