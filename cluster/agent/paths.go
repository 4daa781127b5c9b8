package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/cluster/probe"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// paths are what tests of the paths to other nodes found, by the names of nodes.
type paths struct {
	prober *probe.Prober // nil: nothing is tested

	mu     sync.Mutex
	found  map[string]agentstatus.Path
	mtus   map[string]int       // in bytes, where packets of the length that the way has do not pass
	onLink map[string]bool      // packets of containers arrive by the link that both nodes are on
	barred map[string]time.Time // the way by the link failed in use; it is not used until then

	sums    suspicion
	without string // node whose test decides about sums
	turned  bool   // the offload was on until this agent tried to do without
}

// barredFor is how long a way by the link is not tried after it failed.
const barredFor = time.Hour

// startTests tests the paths to other nodes until ctx ends; it returns what waits for that end. An MTU that is another
// one is an event.
func (a *Agent) startTests(ctx context.Context, events chan<- struct{}) (wait func()) {
	if a.ProbePort == 0 {
		return func() {}
	}
	p := &a.paths
	p.found, p.barred = map[string]agentstatus.Path{}, map[string]time.Time{}
	p.mtus, p.onLink = a.inheritedRoutes()
	p.prober = probe.New(a.World.Host, a.ProbePort, func(node string, path agentstatus.Path, mtu int) {
		former, changed := p.learn(node, path, mtu)
		if changed {
			select {
			case events <- struct{}{}:
			default:
			}
		}
		if former.Tested.IsZero() || former.Whole() != path.Whole() {
			a.Log.Info(pathChanged, "node", node, "state", path.State(), "mtu", mtu, "cause", path.Cause)
		}
	})
	if a.ProbeEvery != 0 {
		p.prober.Every = a.ProbeEvery
	}
	a.startExchange(ctx)
	var running sync.WaitGroup
	running.Go(func() { p.prober.Run(ctx) })
	return running.Wait
}

// pathChanged is logged when the path to a node is whole, or is not any more.
const pathChanged = "tested the path to a node"

// learn takes the end of a test. Changed says that something else is to be in the kernel.
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
	changed = p.learnSums(node, path) || changed
	return former, p.learnLink(node, path) || changed
}

// learnLink takes what a test said of the way by the link. Families that have no such way do not count, and a test
// without an answer of the other agent changes nothing.
func (p *paths) learnLink(node string, path agentstatus.Path) (changed bool) {
	inUse := p.onLink[node]
	arrived, dropped := false, false
	for _, in := range path.Inside {
		if in.Link == "" {
			continue
		}
		arrived = arrived || in.Link == agentstatus.Passed
		dropped = dropped || in.Link == agentstatus.LostThere || in.Link == agentstatus.LostBack
		failed := in.Small == agentstatus.LostThere || in.Small == agentstatus.LostBack
		if inUse && failed {
			p.barred[node] = path.Tested.Add(barredFor)
		}
	}
	isBarred := path.Tested.Before(p.barred[node])
	p.onLink[node] = !dropped && !isBarred && (arrived || inUse)
	return p.onLink[node] != inUse
}

// learnSums takes what a test said of datagrams in the tunnel.
func (p *paths) learnSums(node string, path agentstatus.Path) (changed bool) {
	was := p.sums
	arrive := agentstatus.Passed
	for _, in := range path.Inside {
		if in.Small != agentstatus.Passed || in.UDP == agentstatus.Lost {
			return false
		}
		if in.UDP == agentstatus.LostThere {
			arrive = agentstatus.LostThere
		}
	}
	switch {
	case p.onLink[node] || len(path.Inside) == 0: // no tunnel
	case p.sums == unsuspected && arrive == agentstatus.LostThere:
		p.sums, p.without = tried, node
	case p.sums == tried && p.without == node && arrive == agentstatus.Passed:
		p.sums = guilty
	case p.sums == tried && p.without == node && p.turned:
		p.sums = innocent
	}
	return p.sums != was
}

// direct reports whether packets to a node's containers arrive by the link.
func (p *paths) direct(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.onLink[node]
}

func (p *paths) checksums() suspicion {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sums
}

// turn notes that the offload was on.
func (p *paths) turn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turned = true
}

// inheritedRoutes returns what a former agent found, by the routes that it left: MTUs, and the nodes reached by the link.
func (a *Agent) inheritedRoutes() (mtus map[string]int, onLink map[string]bool) {
	mtus, onLink = map[string]int{}, map[string]bool{}
	var devices []int
	for _, name := range a.deviceNames() {
		if index, err := rtnl.IndexOf(a.World.Host, name); err == nil {
			devices = append(devices, index)
		}
	}
	for _, family := range []uint8{rtnl.IPv4, rtnl.IPv6} {
		routes, err := rtnl.Routes(a.World.Host, rtnl.RouteFilter{Family: family, Table: rtnl.MainTable,
			Protocol: overlay.RouteProtocol})
		if err != nil {
			a.Log.Warn("what the routes that are there say is unknown until the paths are tested", "cause", err)
		}
		for _, r := range routes {
			i := slices.IndexFunc(a.nodes, func(n directory.Node) bool { return slices.Contains(n.Prefixes, r.Dst) })
			if i < 0 || r.Type != rtnl.Unicast {
				continue
			}
			if r.MTU != 0 {
				mtus[a.nodes[i].Name] = r.MTU
			}
			if len(devices) > 0 && !slices.Contains(devices, r.Link) {
				onLink[a.nodes[i].Name] = true
			}
		}
	}
	return mtus, onLink
}

// testPaths says which paths are to be tested.
func (a *Agent) testPaths(v view) {
	p := &a.paths
	if p.prober == nil {
		return
	}
	addrs, onLinks := map[string][]netip.Addr{}, map[string][]overlay.Hop{}
	for _, n := range v.nodes {
		addrs[n.Name], onLinks[n.Name] = ownAddrs(n), hops(n, v.links)
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
			MTU: v.ups[i].mtu, Links: linksTo(to, onLinks[to.Node], v.links), TryLinks: a.Mode == Auto,
			Way: fmt.Sprint("direct ", to.Direct, ", checksums ", p.checksums())})
	}
	p.prober.Set(addrs[a.Node], peers)
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.found, func(node string, _ agentstatus.Path) bool { return !known[node] })
	maps.DeleteFunc(p.mtus, func(node string, _ int) bool { return !known[node] })
	maps.DeleteFunc(p.onLink, func(node string, _ bool) bool { return !known[node] })
	maps.DeleteFunc(p.barred, func(node string, _ time.Time) bool { return !known[node] })
}

// linksTo returns which of the next hops to a peer by a link that both are on are those of IPv4 and IPv6.
func linksTo(p overlay.Peer, hops []overlay.Hop, on []uplink) (links [2]probe.Link) {
	p.Direct = hops
	for _, dst := range p.Prefixes {
		hop := p.Hop(dst)
		up := slices.IndexFunc(on, func(up uplink) bool { return up.name == hop.Link })
		if up < 0 {
			continue
		}
		family := 0
		if dst.Addr().Is6() {
			family = 1
		}
		links[family] = probe.Link{Index: on[up].index, Via: hop.Via}
	}
	return links
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
