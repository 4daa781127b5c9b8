// Package agent connects the containers of a node with those of the other nodes of a cluster: it makes the node's VXLAN
// device and its routes what the directory of nodes says, and grants the node's own range to the plugin cluster.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/cluster/exchange"
	"github.com/fairlead-cni/fairlead/cluster/fence"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/overlay"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Agent is that of one node, for one network.
type Agent struct {
	Cluster string // name of the cluster, of which the MAC addresses of all nodes are made
	Node    string // name of this node in it
	Version string // of the program, for people
	Network string // name of the network whose containers get addresses from the grant
	Source  Source
	Grant   *grant.File // of the network; nil: no other program writes it
	World   *kernel.World
	Saved   directory.File // the nodes, over restarts and boots
	Log     *slog.Logger

	Conflist Conflist // of the network

	// Device, ID and Port are those of the VXLAN devices. Device is the name of that for nodes with IPv4 addresses.
	// That for nodes with IPv6 addresses has a 6 behind it.
	Device string
	ID     uint32
	Port   uint16
	Mode   Mode

	Tunnel Tunnel // of the mode WireGuard

	Fence *fence.Fence // of the grant; nil: nothing is cut off

	Checksums Checksums // of packets into the devices

	MTU int // of packets to containers of other nodes, in bytes; zero: what fits through the uplinks

	// ProbePort is the UDP port at which agents ask each other what they received. Zero: the paths are not tested.
	ProbePort uint16

	// ProbeEvery is the time between two tests of a path, at least [probe.LeastEvery]. Zero: a minute.
	ProbeEvery time.Duration

	Meter Meter // nil: what the cluster sends is not counted

	// Services has the ranges of the cluster's Services, and again when they change. Nil: they are unknown.
	Services <-chan []netip.Prefix

	// Publish tells the other nodes this node's end of WireGuard tunnels. One without a key says that the node has none. Nil:
	// the others know.
	Publish func(context.Context, directory.Tunnel) error

	// Ready is called once, when pods can be attached to this node, or the source may grant it ranges. Nil: nothing is called.
	Ready func()

	// Granted has a value when another program has changed the ranges in the grant. Nil: none does.
	Granted <-chan struct{}

	// Ask looks whether the node can get more addresses, and returns when the grant says so. The error may be a
	// [grant.Refusal]. Nil: it cannot.
	Ask func(context.Context, grant.Want) error

	// Answers are further requests at the agent's socket that the source answers, by their patterns.
	Answers map[string]http.HandlerFunc

	// Describe adds to the status what the source knows beside the nodes. Nil: nothing.
	Describe func(*agentstatus.Status)

	// Secret returns what the agents of the cluster know and nothing else does. With it, they ask each other where packets
	// go. Nil: they do not.
	Secret func() ([]byte, error)

	nodes   []directory.Node
	unsaved bool   // nodes are not in the file Saved
	known   bool   // nodes are what the cluster said since the agent started, not what was saved
	told    string // what was logged last
	isReady bool   // Ready was called
	links   atomic.Pointer[links]

	services []netip.Prefix // ranges of the cluster's Services, as far as they are known

	started, heard time.Time // when Run began, and when the cluster last told the nodes
	status         atomic.Pointer[agentstatus.Status]
	paths          paths
	exchange       atomic.Pointer[exchange.Exchange] // nil: the paths are not tested
	counts         counts
	publisher      publisher
}

var errNotHeard = errors.New("the cluster has not said yet which nodes it has")

// every is the time after which the agent compares the kernel with what should be if nothing happened.
const every = time.Minute

// Run keeps the kernel as the nodes say, until ctx ends. It compares at start, when updates has the nodes of the
// cluster, when the device or what it has changes, and every minute. It leaves everything in the kernel as it is, so
// that containers go on while no agent runs.
func (a *Agent) Run(ctx context.Context, updates <-chan []directory.Node) error {
	var err error
	a.started = time.Now()
	if a.nodes, err = a.Saved.Load(a.Cluster); err != nil {
		a.Log.Warn("the nodes of the last run are unknown", "cause", err)
	}
	events := make(chan struct{}, 1) // however many, one comparison answers them
	ctx, stop := context.WithCancel(ctx)
	defer a.startTests(ctx, events)()
	defer a.publisher.start(ctx, a.Publish, events)()
	defer stop()
	failed := make(chan error, 3)
	a.watch(ctx, events, failed)
	go a.watchFilter(ctx, events, failed)
	tick := time.NewTicker(every)
	defer tick.Stop()
	a.compare(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("listen to the kernel's events: %w", err)
		case <-events:
		case nodes := <-updates:
			a.learn(nodes)
		case a.services = <-a.Services:
		case <-a.Granted:
		case <-tick.C:
		}
		a.compare(ctx)
	}
}

// learn takes the nodes of the cluster, and saves them if they changed.
func (a *Agent) learn(nodes []directory.Node) {
	slices.SortFunc(nodes, func(x, y directory.Node) int { return cmp.Compare(x.Name, y.Name) })
	for i, n := range nodes {
		was := slices.IndexFunc(a.nodes, func(former directory.Node) bool { return former.Name == n.Name })
		if was >= 0 && len(n.Endpoints) == 0 { // a node that says nothing does not become unreachable
			nodes[i].Endpoints = a.nodes[was].Endpoints
		}
	}
	a.known, a.heard = true, time.Now()
	if reflect.DeepEqual(nodes, a.nodes) {
		return
	}
	a.nodes, a.unsaved = nodes, true
}

// save keeps the nodes over a restart. What cannot be saved is saved with the next comparison.
func (a *Agent) save() error {
	if !a.unsaved {
		return nil
	}
	if err := a.Saved.Save(a.Cluster, a.nodes); err != nil {
		return fmt.Errorf("the nodes are not saved: after a restart without the cluster this node has no way to others: %w", err)
	}
	a.unsaved = false
	return nil
}

// compare compares the kernel and the grant with what should be, and makes it so. It says what it cannot do once, and
// again when that changes.
func (a *Agent) compare(ctx context.Context) {
	var seen view
	unsaved := a.save()
	fenced := a.mendFence(ctx)
	found, err := a.reconcile(ctx, &seen)
	err = errors.Join(err, unsaved, fenced)
	status := a.describe(seen, err)
	status.Started, status.Heard, status.Compared = a.started, a.heard, time.Now()
	a.counts.corrected.Add(int64(correctedOf(found, err)))
	a.counts.sample(status.Compared, a.Meter)
	a.testPaths(seen)
	a.status.Store(&status)
	if len(found) > 0 {
		a.Log.Info("made the ways to other nodes as they should be", "changes", len(found), "first", found[0].Error())
	}
	text := "all nodes are programmed"
	switch {
	case err != nil:
		text = err.Error()
	case !a.known:
		text = "the last run's nodes are programmed, and the cluster has not answered yet"
	}
	if text == a.told {
		return
	}
	a.told = text
	if err == nil {
		a.Log.Info(text, "nodes", len(a.nodes))
		return
	}
	if errors.Is(err, errNotHeard) {
		a.Log.Info("waiting for " + a.Source.String() + " to say which nodes there are")
		return
	}
	a.Log.Error("not all is as it should be; the next attempt is at the next change, and within a minute", "cause", err)
}

// reconcile makes the device, the peers and the grant what the nodes say. What it knew is in seen, also after an error.
func (a *Agent) reconcile(ctx context.Context, seen *view) (found spec.Differences, err error) {
	if len(a.nodes) == 0 && !a.known {
		return nil, errNotHeard
	}
	occupied, err := a.occupants(a.nodes)
	if err != nil {
		return nil, err
	}
	nodes, errs := occupied.unoccupied(a.nodes, a.Node)
	nodes, conflicts := directory.ResolveConflicts(nodes)
	seen.nodes = nodes
	for _, c := range conflicts {
		errs = append(errs, c)
	}
	errs = append(errs, a.ensureMasquerade(ctx, nodes))
	self, err := a.self(nodes)
	if err != nil {
		return nil, errors.Join(append(errs, a.refuse(err))...)
	}
	ups, err := a.uplinks(self)
	if len(ups) == 0 {
		return nil, errors.Join(append(errs, a.refuse(err))...)
	}
	if err := occupied.refuseSelf(self); err != nil {
		return nil, errors.Join(append(errs, a.refuse(err))...)
	}
	peers, err := a.peers(nodes, self, ups)
	errs = append(errs, err)
	a.paths.shorten(peers)
	links := ups
	ups = a.inUse(ups, peers)
	seen.ups, seen.peers, seen.links = ups, peers, links
	for _, up := range ups {
		if !up.attached() {
			errs = append(errs, a.noLink(self.Name, up.addr))
		}
	}
	if err := a.ensurePortFilter(ctx, self, nodes); err != nil {
		return nil, errors.Join(append(errs, a.refuse(err))...)
	}
	configured, err := a.ensureDevices(ctx, self, ups, nodes, peers)
	if err != nil {
		return configured, errors.Join(append(errs, a.refuse(err))...)
	}
	devices := a.devices(ups)
	found, err = overlay.Sync(ctx, a.World, a.withEntries(devices), slices.Concat(peers, a.refused(nodes, peers)))
	found = append(configured, found...)
	errs = append(errs, err, a.publish(self), a.dropDevices(ctx, devices))
	if a.known {
		errs = append(errs, a.makeReady(ctx, self, nodes, a.leastMTU(ups), err))
	}
	return found, errors.Join(errs...)
}

// A Missing says what this node lacks to have a range, and which command tells more.
type Missing struct{ What, Hint string }

func (m Missing) Error() string { return m.What + ". " + m.Hint }

// self returns this node, which has a prefix.
func (a *Agent) self(nodes []directory.Node) (directory.Node, error) {
	i := slices.IndexFunc(nodes, func(n directory.Node) bool { return n.Name == a.Node })
	if i < 0 {
		return directory.Node{}, Missing{fmt.Sprintf("the cluster has no node %s", a.Node),
			a.Source.listNodes()}
	}
	if len(nodes[i].Prefixes) > 0 || a.Source == Etcd { // where the ways to others stand before the first block
		return nodes[i], nil
	}
	j := slices.IndexFunc(a.nodes, func(n directory.Node) bool { return n.Name == a.Node })
	if len(a.nodes[j].Prefixes) > 0 {
		owner, prefix := a.ownerOf(a.nodes[j].Prefixes)
		return nodes[i], Missing{fmt.Sprintf("node %s has %v, which node %s has too, and joined before", owner, prefix, a.Node),
			"`kubectl get nodes -o custom-columns=N:.metadata.name,P:.spec.podCIDRs` shows which."}
	}
	return nodes[i], a.Source.noRange(a.Node)
}

// own returns the node's own addresses among its containers: the first one of each prefix, which is the containers'
// gateway. A prefix of one address is a container's.
func own(self directory.Node) (addrs []netip.Addr) {
	if len(self.Gateways) > 0 {
		return self.Gateways
	}
	for _, p := range self.Prefixes {
		if !p.IsSingleIP() {
			addrs = append(addrs, p.Masked().Addr().Next())
		}
	}
	return addrs
}

// grant writes what the agent knows into the grant.
func (a *Agent) grant(self directory.Node, nodes []directory.Node, mtu int) error {
	return a.change(func(g *grant.Grant) {
		g.MTU, g.Prefixes = mtu, prefixesOf(nodes)
		if a.Source == Kubernetes {
			g.Ranges, g.Source, g.Missing, g.Hint, g.Reserve = self.Prefixes, nil, "", "", 0
		}
	})
}

// refuse says in the grant why this node has no range. A grant with a range stays, unless the cluster has given the range
// to another node. Containers keep their addresses all the same: only ADD asks the grant. It returns err.
func (a *Agent) refuse(err error) error {
	if !a.known {
		return err
	}
	var m Missing
	is := errors.As(err, &m)
	if have, rerr := grant.Read(a.Network); rerr == nil {
		other, prefix := a.ownerOf(have.Ranges)
		if other == "" || a.Source == Etcd {
			return err
		}
		if !is {
			m = Missing{fmt.Sprintf("node %s has %v now", other, prefix), "`fairlead cluster status` tells more."}
		}
	} else if !is {
		return err
	}
	return errors.Join(err, a.change(func(g *grant.Grant) {
		g.Ranges, g.Prefixes, g.MTU, g.Missing, g.Hint = nil, nil, 0, m.What, m.Hint
	}))
}

// ownerOf returns another node, and its prefix, that overlaps one of these ranges.
func (a *Agent) ownerOf(ranges []netip.Prefix) (name string, prefix netip.Prefix) {
	nodes, _ := directory.ResolveConflicts(a.nodes)
	for _, n := range nodes {
		i := slices.IndexFunc(n.Prefixes, func(p netip.Prefix) bool { return slices.ContainsFunc(ranges, p.Overlaps) })
		if n.Name != a.Node && i >= 0 {
			return n.Name, n.Prefixes[i]
		}
	}
	return "", netip.Prefix{}
}
