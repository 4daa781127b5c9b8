package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/agent"
	"github.com/fairlead-cni/fairlead/cluster/blocks"
	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/cluster/fence"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/resource/overlay"
)

// idle is the time after which the node gives back a block that it did not need.
const idle = 10 * time.Minute

// sharedPools are what the flags say of a cluster on etcd.
type sharedPools struct {
	etcd.Joined

	file      string // that `fairlead cluster join` wrote
	endpoints []string
	pools     string
	ips       string
	spare     int
	reserve   int
}

func (f *sharedPools) flags(flags *flag.FlagSet) {
	etcd.DefineEndpoints(flags, &f.endpoints, "`URL`,… of etcd, where nodes without Kubernetes share pools of addresses")
	f.Define(flags)
	flags.StringVar(&f.file, "etcd-config", "", "`FILE` that fairlead cluster join wrote, for what these flags do not say (default: "+
		etcd.JoinedFile+", if it exists and --kubeconfig is not said)")
	flags.StringVar(&f.pools, "pool", "", "`NAME`,… of the pools that this node claims blocks of, in this order (default: all)")
	flags.StringVar(&f.ips, "node-ip", "", "`ADDRESS`,… by which other nodes reach this one, with --etcd (default: those of the "+
		"links with a default route)")
	flags.IntVar(&f.spare, "spare", -1, "`ADDRESSES` of each family that are free at least, with --etcd; -1: those of a block")
	flags.IntVar(&f.reserve, "reserve", 4, "`ADDRESSES`: STATUS fails while fewer are free, with --etcd")
}

// wanted reports whether the nodes come from etcd.
func (f *sharedPools) wanted() bool { return len(f.endpoints) > 0 || f.file != "" }

// read completes the flags, and those of the agent, with the file.
func (f *sharedPools) read(a *agent.Agent, kubeconfig string) error {
	isPod := os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	if _, err := os.Lstat(etcd.JoinedFile); err == nil && !isPod && kubeconfig == "" && !f.wanted() {
		f.file = etcd.JoinedFile
	}
	if !f.wanted() {
		a.Network, a.Cluster = cmp.Or(a.Network, etcd.DefaultNetwork), cmp.Or(a.Cluster, "kubernetes")
		return nil
	}
	var from etcd.Joined
	if f.file != "" {
		read, warnings, err := etcd.ReadJoined(f.file)
		if err != nil {
			return fmt.Errorf("--etcd-config: %w", err)
		}
		for _, text := range warnings {
			a.Log.Warn(text)
		}
		from = read
	}
	f.Cluster, f.Pools = a.Cluster, etcd.SplitList(f.pools)
	f.Joined = from.With(f.Joined, f.endpoints)
	a.Source, a.Cluster, a.Network = agent.Etcd, f.Cluster, cmp.Or(a.Network, f.Network, etcd.DefaultNetwork)
	a.Conflist.Source = cmp.Or(a.Conflist.Source, f.Conf)
	if f.spare < -1 || f.reserve < 0 {
		return fmt.Errorf("--spare %d and --reserve %d: want -1 or more, and 0 or more", f.spare, f.reserve)
	}
	return nil
}

// addresses returns those by which other nodes reach this one.
func (f *sharedPools) addresses(a *agent.Agent) (list []netip.Addr, err error) {
	if f.ips == "" {
		if list, err = agent.NodeIPs(a.World.Host); err == nil && len(list) == 0 {
			err = errors.New("--node-ip: no link of this host has a default route: say by which addresses other nodes reach it")
		}
		return list, err
	}
	for _, text := range etcd.SplitList(f.ips) {
		ip, err := netip.ParseAddr(text)
		if err != nil || !ip.IsGlobalUnicast() {
			return nil, fmt.Errorf("--node-ip: %q is not an address that other nodes can reach", text)
		}
		list = append(list, ip.Unmap())
	}
	return list, nil
}

// run runs the agent with the nodes that etcd tells, and with blocks of its pools.
func (f *sharedPools) run(ctx context.Context, a *agent.Agent) error {
	ips, err := f.addresses(a)
	if err != nil {
		return err
	}
	store, err := etcd.Open(f.Access)
	if err != nil {
		return err
	}
	defer store.Close()
	device, tunnel, l, err := begin(a)
	if err != nil {
		return err
	}
	defer device.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	view := etcd.NewView()
	self := directory.Node{Name: a.Node, Endpoints: ips, MAC: overlay.MAC(a.Cluster, a.Node).String()}
	m := f.member(a, store, view, self)
	if tunnel.Key != "" {
		said := blocks.Tunnel(tunnel)
		m.Host.Tunnel = &said
	}
	a.Publish = func(context.Context, directory.Tunnel) error {
		m.SayAgain()
		return nil
	}
	granted, ready := make(chan struct{}, 1), make(chan struct{})
	if a.Secret == nil {
		a.Secret = store.Secret
	}
	a.Grant, a.Granted, a.Ask, m.Ready = m.Grant, granted, m.Ask, ready
	a.Fence = &fence.Fence{Network: a.Network, World: a.World}
	m.Fence = a.Fence
	a.Answers = map[string]http.HandlerFunc{etcd.AdoptPattern: m.ServeAdopt}
	a.Ready = func() { close(ready) }
	m.Published = func() {
		select {
		case granted <- struct{}{}:
		default:
		}
	}
	a.Describe = func(s *agentstatus.Status) { describe(s, view, m) }
	go a.Serve(ctx, l)

	updates := make(chan []directory.Node)
	changed := make(chan struct{}, 1)
	var running sync.WaitGroup
	running.Go(func() {
		store.Follow(ctx, view, func(freed bool) {
			select {
			case changed <- struct{}{}:
			default:
			}
			if freed {
				m.Freed()
			}
			m.ViewChanged()
		}, a.SetFailure)
	})
	running.Go(func() { tell(ctx, m, self, changed, updates) })
	running.Go(func() {
		if err := m.Run(ctx); err != nil {
			stop(err)
		}
	})
	err = a.Run(ctx, updates)
	stop(nil)
	running.Wait()
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// member returns what gets the node its blocks.
func (f *sharedPools) member(a *agent.Agent, store *etcd.Store, view *etcd.View, self directory.Node) *etcd.Member {
	m := etcd.NewMember(store, view, a.Network, blocks.Host{Name: self.Name, Endpoints: self.Endpoints, MAC: self.MAC,
		Version: a.Version})
	m.Log, m.Pools, m.Spare, m.Reserve, m.Idle = a.Log, f.Pools, f.spare, f.reserve, idle
	m.Least = 1
	m.Failed, m.Answered = a.SetFailure, a.Answered
	m.Fit = func(p netip.Prefix) error {
		var own []netip.Prefix
		if g, err := grant.OfBoot(a.Network); err == nil {
			own = slices.Clone(g.Ranges)
			for _, pin := range g.Pins { // and the gateway of its container
				in, _ := g.Of(pin)
				gateway := in.Prefix.Addr().Next()
				own = append(own, netip.PrefixFrom(pin, pin.BitLen()), netip.PrefixFrom(gateway, gateway.BitLen()))
			}
		}
		return a.Fit(p, own)
	}
	return m
}

// tell sends the nodes with each change. This node is one of them, also before it has joined, and in place of another one of
// its name, whose addresses it must not take for its own.
func tell(ctx context.Context, m *etcd.Member, self directory.Node, changed <-chan struct{},
	updates chan<- []directory.Node) {
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		nodes := m.View.Nodes()
		i := slices.IndexFunc(nodes, func(n directory.Node) bool { return n.Name == self.Name })
		switch {
		case i < 0:
			nodes = append(nodes, self)
		case m.HasNamesake(ctx):
			nodes[i] = self
		default:
			nodes[i].Endpoints = self.Endpoints
		}
		select {
		case updates <- nodes:
		case <-ctx.Done():
			return
		}
	}
}

// describe adds the pools to a status, and what keeps the node from getting more addresses.
func describe(s *agentstatus.Status, view *etcd.View, self *etcd.Member) {
	for _, p := range view.Pools() {
		s.Pools = append(s.Pools, agentstatus.Pool{Name: p.Name, Prefix: p.Prefix, Blocks: p.Blocks, Owned: p.Owned,
			Leased: p.Leased, Usable: json.Number(p.Usable.String())})
	}
	g, err := grant.OfBoot(s.Network)
	if err == nil && g.Missing != "" {
		s.Problems = append(s.Problems, agentstatus.Problem{Kind: agentstatus.NotGranted, Node: s.Node,
			Text: g.Missing + ". " + g.Hint})
	}
	if err == nil {
		for _, text := range view.Overdue(g, disk.Uptime()) {
			s.Problems = append(s.Problems, agentstatus.Problem{Kind: agentstatus.NotGranted, Node: s.Node,
				Text: text + ". Mend the way to etcd: others get these addresses some time later"})
		}
	}
	for _, text := range view.Unread() {
		s.Problems = append(s.Problems, agentstatus.Problem{Kind: agentstatus.Other,
			Text: text + ". Remove the entry, or upgrade this node's agent"})
	}
	if view.Restored() {
		s.Problems = append(s.Problems, agentstatus.Problem{Kind: agentstatus.Other,
			Text: "etcd was restored from a copy, and no node claims addresses: `fairlead cluster readopt` says what to do"})
	}
	for _, m := range view.Members() {
		if m.Alive || m.State == etcd.StateForgotten {
			continue
		}
		text := "the agent of node " + m.Name + " does not run, as far as etcd knows. Its containers go on."
		if m.State == etcd.StateReclaimed {
			text += " It was silent for so long that it lost blocks to other nodes."
		}
		s.Problems = append(s.Problems, agentstatus.Problem{Kind: agentstatus.AgentSilent, Node: m.Name,
			Text: text + self.Fate(m.ID) + " If the node is gone for good: `fairlead cluster forget`"})
	}
}
