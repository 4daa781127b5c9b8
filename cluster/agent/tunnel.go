package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/cluster/wireguard"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// A Tunnel is this node's end of WireGuard tunnels.
type Tunnel struct {
	Device  string // name
	Port    uint16 // UDP
	KeyFile string // has the private key, which stays on this node

	key wgtypes.Key
}

// LoadKey reads the private key where the mode needs one, and makes it where the node has none. It returns what other nodes
// have to know, or nothing.
func (a *Agent) LoadKey() (directory.Tunnel, error) {
	if a.Mode != WireGuard {
		return directory.Tunnel{}, nil
	}
	var err error
	if a.Tunnel.key, err = wireguard.LoadKey(a.Tunnel.KeyFile); err != nil {
		return directory.Tunnel{}, fmt.Errorf("--mode wireguard: %w", err)
	}
	return a.said(), nil
}

// said is what this node says of its end of WireGuard tunnels.
func (a *Agent) said() directory.Tunnel {
	if a.Mode != WireGuard {
		return directory.Tunnel{}
	}
	return directory.Tunnel{Key: a.Tunnel.key.PublicKey().String(), Port: a.Tunnel.Port}
}

// A ModesDiffer says that a node and this one have modes by which packets of neither reach the other.
type ModesDiffer struct {
	Node, Self string
	Mode       Mode // of Self
}

func (e ModesDiffer) Error() string {
	const fix = "give all agents one --mode (MODE in the ConfigMap fairlead-agent)"
	if e.Mode == WireGuard {
		return fmt.Sprintf("node %s has published no WireGuard key, and node %s has --mode wireguard: %s, or look in the log of "+
			"the agent of %[1]s why it publishes none", e.Node, e.Self, fix)
	}
	return fmt.Sprintf("node %s has published a WireGuard key, so it has --mode wireguard, and node %s has --mode %s: %s",
		e.Node, e.Self, e.Mode, fix)
}

// A WrongKey says that what a node published is no public key, or is the key of another node.
type WrongKey struct{ Node, Key, Owner string }

func (e WrongKey) Error() string {
	if e.Owner == "" {
		return fmt.Sprintf("node %s has published %q as its WireGuard key: want 32 bytes in base64 and a UDP port; restart its agent", e.Node, e.Key)
	}
	return fmt.Sprintf("nodes %s and %s have published one WireGuard key, %s, and %[2]s keeps it: if %[1]s is a copy of %[2]s, remove "+
		"/var/lib/cni/fairlead/cluster/*.wireguard.key on %[1]s, and restart its agent", e.Node, e.Owner, e.Key)
}

// suits reports whether packets to a node can go as the mode says: both nodes have tunnels of WireGuard, or neither. No two
// nodes have one key: packets for one would be encrypted for the other.
func (a *Agent) suits(n directory.Node, owners map[string]directory.Node) error {
	hasKey := n.Tunnel.Key != ""
	if hasKey != (a.Mode == WireGuard) {
		return ModesDiffer{n.Name, a.Node, cmp.Or(a.Mode, VXLAN)}
	}
	if !hasKey {
		return nil
	}
	key, err := wgtypes.ParseKey(n.Tunnel.Key)
	if err != nil || n.Tunnel.Port == 0 || key == (wgtypes.Key{}) {
		return WrongKey{Node: n.Name, Key: n.Tunnel.Key}
	}
	owner := owners[n.Tunnel.Key].Name
	if n.Tunnel.Key == a.said().Key {
		owner = a.Node
	}
	if owner != n.Name {
		return WrongKey{n.Name, n.Tunnel.Key, owner}
	}
	return nil
}

// keyOwners returns by WireGuard keys the nodes that have them. Of two with one key, the older has it.
func keyOwners(nodes []directory.Node) map[string]directory.Node {
	owners := map[string]directory.Node{}
	for _, n := range nodes {
		was, found := owners[n.Tunnel.Key]
		if !found || cmp.Or(cmp.Compare(n.Joined, was.Joined), cmp.Compare(n.Name, was.Name)) < 0 {
			owners[n.Tunnel.Key] = n
		}
	}
	return owners
}

// wireguard is the node's device with the peers, whose keys suits has found to be right.
func (a *Agent) wireguard(nodes []directory.Node, peers []overlay.Peer) wireguard.Device {
	d := wireguard.Device{Name: a.Tunnel.Device, Key: a.Tunnel.key, Port: a.Tunnel.Port}
	byName := map[string]directory.Node{}
	for _, n := range nodes {
		byName[n.Name] = n
	}
	for _, p := range peers {
		n := byName[p.Node]
		key, _ := wgtypes.ParseKey(n.Tunnel.Key)
		to := wireguard.Peer{Node: n.Name, Key: key, Prefixes: n.Prefixes}
		for _, e := range append([]netip.Addr{p.Endpoint}, n.Endpoints...) {
			to.Endpoints = append(to.Endpoints, netip.AddrPortFrom(e, n.Tunnel.Port))
		}
		d.Peers = append(d.Peers, to)
	}
	return d
}

// refused returns the nodes to which nothing may go, because it cannot go encrypted.
func (a *Agent) refused(nodes []directory.Node, peers []overlay.Peer) (list []overlay.Peer) {
	if a.Mode != WireGuard {
		return nil
	}
	has := map[string]bool{a.Node: true}
	for _, p := range peers {
		has[p.Node] = true
	}
	for _, n := range nodes {
		if !has[n.Name] {
			list = append(list, overlay.Peer{Node: n.Name, MAC: overlay.MAC(a.Cluster, n.Name), Prefixes: n.Prefixes,
				Sealed: true})
		}
	}
	return list
}

// tunnelPorts returns the UDP ports at which nodes receive, in order.
func (a *Agent) tunnelPorts(nodes []directory.Node) []uint16 {
	ports := []uint16{a.Tunnel.Port}
	for _, n := range nodes {
		if n.Tunnel.Port != 0 {
			ports = append(ports, n.Tunnel.Port)
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// describeDevice says what people are told of a device.
func (a *Agent) describeDevice(d device, up uplink) agentstatus.Device {
	said := agentstatus.Device{Name: d.name, Kind: "vxlan", ID: a.ID, Port: a.Port, Local: up.addr, Uplink: up.name, MTU: d.mtu}
	if a.Mode == WireGuard {
		said.Kind, said.ID, said.Port, said.PublicKey = "wireguard", 0, a.Tunnel.Port, a.said().Key
	}
	return said
}

// A publisher tells the cluster this node's end of WireGuard tunnels, beside everything else: the cluster may not answer.
type publisher struct {
	next chan directory.Tunnel

	mu  sync.Mutex
	err error // of the last attempt
}

// publishIn is the time that one attempt may take.
const publishIn = 10 * time.Second

// start publishes until ctx ends. It returns what waits for that end. An attempt that failed otherwise than the last one is an
// event.
func (p *publisher) start(ctx context.Context, publish func(context.Context, directory.Tunnel) error,
	events chan<- struct{}) (wait func()) {
	if publish == nil {
		return func() {}
	}
	p.next = make(chan directory.Tunnel, 1)
	attempt := func(t directory.Tunnel) {
		ctx, stop := context.WithTimeout(ctx, publishIn)
		defer stop()
		err := publish(ctx, t)
		if !p.failed(err) {
			return
		}
		select {
		case events <- struct{}{}:
		default:
		}
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case t := <-p.next:
				attempt(t)
			}
		}
	})
	return running.Wait
}

// failed keeps the error of an attempt, and reports whether it is another one.
func (p *publisher) failed(err error) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	news = fmt.Sprint(err) != fmt.Sprint(p.err)
	p.err = err
	return news
}

// publish tells the cluster this node's end of WireGuard tunnels, if self is not what the node says. The error is that of the
// last attempt.
func (a *Agent) publish(self directory.Node) error {
	p := &a.publisher
	if p.next == nil || !a.known {
		return nil
	}
	if self.Tunnel == a.said() {
		p.failed(nil)
		return nil
	}
	select {
	case p.next <- a.said():
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return nil
	}
	return NotPublished{a.Node, a.Mode, p.err}
}

// A NotPublished says that the other nodes do not know this node's key.
type NotPublished struct {
	Node string
	Mode Mode
	err  error
}

func (e NotPublished) Error() string {
	if e.Mode == WireGuard {
		return fmt.Sprintf("node %s cannot publish its WireGuard key, so other nodes send it nothing: %v", e.Node, e.err)
	}
	return fmt.Sprintf("node %s has --mode %s, and its WireGuard key of before is still published, so other nodes send it nothing: %v; "+
		"remove it with `kubectl annotate node %[1]s fairlead-cni.github.io/wireguard-`", e.Node, e.Mode, e.err)
}

func (e NotPublished) Unwrap() error { return e.err }
