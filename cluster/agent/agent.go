// Package agent connects the containers of a node with those of the other nodes of a cluster: it makes the node's VXLAN
// device and its routes what the directory of nodes says, and grants the node's own range to the plugin cluster.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/ipam/grant"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource/overlay"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Agent is that of one node, for one network.
type Agent struct {
	Cluster string // name of the cluster, of which the MAC addresses of all nodes are made
	Node    string // name of this node in it
	Network string // name of the network whose containers get addresses from the grant
	World   *kernel.World
	Saved   directory.File // the nodes, over restarts and boots
	Log     *slog.Logger

	// Device, ID and Port are those of the VXLAN device.
	Device string
	ID     uint32
	Port   uint16

	nodes []directory.Node
	known bool         // nodes are what the cluster said since the agent started, not what was saved
	told  string       // the last error that was logged
	index atomic.Int64 // of the device; zero: there is none
}

// every is the time after which the agent compares the kernel with what should be if nothing happened.
const every = time.Minute

// Run keeps the kernel as the nodes say, until ctx ends. It compares at start, when updates has the nodes of the
// cluster, when the device or what it has changes, and every minute. It leaves everything in the kernel as it is, so
// that containers go on while no agent runs.
func (a *Agent) Run(ctx context.Context, updates <-chan []directory.Node) error {
	var err error
	if a.nodes, err = a.Saved.Load(a.Cluster); err != nil {
		a.Log.Warn("the nodes of the last run are unknown", "cause", err)
	}
	events := make(chan struct{}, 1) // however many, one comparison answers them
	failed := make(chan error, 1)
	go func() {
		groups := []uint{rtnl.LinkEvents, rtnl.NeighbourEvents, rtnl.IPv4RouteEvents, rtnl.IPv6RouteEvents}
		failed <- rtnl.Watch(ctx, a.World.Host, groups, func(link int) {
			if link != 0 && int64(link) != a.index.Load() {
				return
			}
			select {
			case events <- struct{}{}:
			default:
			}
		})
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	a.told = "nothing yet"
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
		if was >= 0 && len(n.Endpoints) == 0 { // nobody becomes unreachable by saying nothing
			nodes[i].Endpoints = a.nodes[was].Endpoints
		}
	}
	a.known = true
	if reflect.DeepEqual(nodes, a.nodes) {
		return
	}
	a.nodes = nodes
	if err := a.Saved.Save(a.Cluster, nodes); err != nil {
		a.Log.Error("the nodes are not saved: after a restart without the cluster this node has no way to others",
			"cause", err)
	}
}

// compare compares the kernel and the grant with what should be, and makes it so. It says what it cannot do once, and
// again when that changes.
func (a *Agent) compare(ctx context.Context) {
	found, err := a.reconcile(ctx)
	if len(found) > 0 {
		a.Log.Info("made the ways to other nodes as they should be", "changes", len(found), "first", found[0].Error())
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == a.told {
		return
	}
	if a.told = text; err == nil {
		a.Log.Info("all nodes are programmed", "nodes", len(a.nodes))
		return
	}
	a.Log.Error("not all is as it should be; the next attempt is at the next change, and within a minute", "cause", err)
}

// reconcile makes the device, the peers and the grant what the nodes say.
func (a *Agent) reconcile(ctx context.Context) (found spec.Differences, err error) {
	if len(a.nodes) == 0 && !a.known {
		return nil, errors.New("the cluster has not said yet which nodes it has")
	}
	nodes, conflicts := directory.Settle(a.nodes)
	var errs []error
	for _, c := range conflicts {
		errs = append(errs, c)
	}
	self, err := a.self(nodes)
	if err != nil {
		return nil, errors.Join(append(errs, a.refuse(err))...)
	}
	up, err := a.uplink(self)
	if err != nil {
		return nil, errors.Join(append(errs, a.refuse(err))...)
	}
	if err := a.ownNetworks(self); err != nil {
		return nil, errors.Join(append(errs, a.refuse(err))...)
	}
	if err := a.ensureDevice(ctx, self, up); err != nil {
		return nil, errors.Join(append(errs, a.refuse(err))...)
	}
	peers, err := a.peers(nodes, self, up)
	errs = append(errs, err)
	found, err = overlay.Sync(ctx, a.World, a.Device, peers)
	errs = append(errs, err)
	if a.known {
		errs = append(errs, a.grant(self, nodes, up))
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
			"`kubectl get nodes` lists them. --node of fairlead-agent has to be the node's name."}
	}
	if len(nodes[i].Prefixes) > 0 {
		return nodes[i], nil
	}
	j := slices.IndexFunc(a.nodes, func(n directory.Node) bool { return n.Name == a.Node })
	if len(a.nodes[j].Prefixes) > 0 {
		return nodes[i], Missing{fmt.Sprintf("another node has %v of node %s, and joined before", a.nodes[j].Prefixes,
			a.Node),
			"`kubectl get nodes -o custom-columns=N:.metadata.name,P:.spec.podCIDRs` shows which."}
	}
	return nodes[i], Missing{fmt.Sprintf("node %s has no podCIDR", a.Node),
		fmt.Sprintf("`kubectl get node %s -o jsonpath={.spec.podCIDRs}` shows it. kube-controller-manager gives it with "+
			"--allocate-node-cidrs and --cluster-cidr.", a.Node)}
}

// An uplink is the link by which other nodes reach this one.
type uplink struct {
	addr netip.Addr
	name string
	mtu  int // of packets inside of the tunnel
}

// uplink returns the link that has the node's first endpoint.
func (a *Agent) uplink(self directory.Node) (uplink, error) {
	if len(self.Endpoints) == 0 {
		return uplink{}, Missing{fmt.Sprintf("node %s has no address of the type InternalIP", self.Name),
			fmt.Sprintf("`kubectl get node %s -o wide` shows it. kubelet reports it (--node-ip).", self.Name)}
	}
	all, err := rtnl.AllAddrs(a.World.Host)
	if err != nil {
		return uplink{}, err
	}
	for _, e := range self.Endpoints {
		i := slices.IndexFunc(all, func(have rtnl.LinkAddr) bool { return have.Prefix.Addr() == e })
		if i < 0 {
			continue
		}
		l, err := rtnl.LinkByIndex(a.World.Host, all[i].Link)
		if err != nil {
			return uplink{}, err
		}
		return uplink{addr: e, name: l.Name, mtu: l.MTU - overlay.Overhead(e)}, nil
	}
	return uplink{}, Missing{fmt.Sprintf("no link of this host has an address of node %s: %v", self.Name, self.Endpoints),
		"`ip addr` lists them. --node of fairlead-agent has to be the name of this node."}
}

// ownNetworks refuses a range that overlaps a network of the host.
func (a *Agent) ownNetworks(self directory.Node) error {
	all, err := rtnl.AllAddrs(a.World.Host)
	if err != nil {
		return err
	}
	for _, have := range all {
		for _, p := range self.Prefixes {
			if have.Prefix.IsSingleIP() || !have.Prefix.Overlaps(p) {
				continue
			}
			name := "a link"
			if l, err := rtnl.LinkByIndex(a.World.Host, have.Link); err == nil {
				name = "link " + l.Name
			}
			return Missing{fmt.Sprintf("%v of node %s overlaps the network %v of %s", p, self.Name, have.Prefix.Masked(), name),
				"Give the cluster another range (--cluster-cidr of kube-controller-manager), or the host another network."}
		}
	}
	return nil
}

// peers returns the other nodes as the kernel is to have them. A node that cannot be reached is an error, and the
// others are peers all the same.
func (a *Agent) peers(nodes []directory.Node, self directory.Node, up uplink) (peers []overlay.Peer, err error) {
	var errs []error
	for _, n := range nodes {
		if n.Name == self.Name || len(n.Prefixes) == 0 {
			continue
		}
		end := n.Endpoint(up.addr)
		if !end.IsValid() {
			errs = append(errs, fmt.Errorf("node %s has no address of the family of %v, by which this node reaches others: "+
				"it has %v", n.Name, up.addr, n.Endpoints))
			continue
		}
		mac, err := net.ParseMAC(n.MAC)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
			continue
		}
		peers = append(peers, overlay.Peer{Device: a.Device, Node: n.Name, MAC: mac, Endpoint: end, Prefixes: n.Prefixes,
			Src: own(self)})
	}
	return peers, errors.Join(errs...)
}

// own returns the node's own addresses among its containers: the first one of each prefix, which is the containers'
// gateway.
func own(self directory.Node) (addrs []netip.Addr) {
	for _, p := range self.Prefixes {
		addrs = append(addrs, p.Masked().Addr().Next())
	}
	return addrs
}

// grant writes the grant if it is another one.
func (a *Agent) grant(self directory.Node, nodes []directory.Node, up uplink) error {
	boot, err := grant.Boot()
	if err != nil {
		return err
	}
	g := grant.Grant{Cluster: a.Cluster, Node: a.Node, Boot: boot, Ranges: self.Prefixes, MTU: up.mtu}
	for _, n := range nodes {
		g.Prefixes = append(g.Prefixes, n.Prefixes...)
	}
	if have, err := grant.Read(a.Network); err == nil && reflect.DeepEqual(*have, g) {
		return nil
	}
	return grant.Write(a.Network, g)
}

// refuse says in the grant why this node has no range, unless it has one. It returns err.
func (a *Agent) refuse(err error) error {
	var m Missing
	have, rerr := grant.Read(a.Network)
	if !a.known || !errors.As(err, &m) || rerr == nil && len(have.Ranges) > 0 {
		return err
	}
	boot, berr := grant.Boot()
	if berr != nil {
		return errors.Join(err, berr)
	}
	return errors.Join(err, grant.Write(a.Network, grant.Grant{Cluster: a.Cluster, Node: a.Node, Boot: boot,
		Missing: m.What, Hint: m.Hint}))
}
