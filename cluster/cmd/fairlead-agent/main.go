// Command fairlead-agent connects the containers of a node with those of the other nodes, by VXLAN or WireGuard. The nodes
// are those of a Kubernetes cluster, or share pools of addresses in etcd.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-cni/fairlead/cluster/agent"
	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/cluster/fleet"
	"github.com/fairlead-cni/fairlead/cluster/nodes"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/kernel"
)

// defaultKubeconfig is where a node that is no pod has it.
const defaultKubeconfig = "/etc/kubernetes/fairlead-agent.conf"

// version is stamped by the Makefile.
var version string

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // objects of 1,000 nodes pass by each five minutes, and few stay
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1) // beside 1,000 nodes, to wake other threads takes a third of the processor time at rest
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == "cluster" {
		os.Exit(fleet.Main(ctx, os.Args[2:], os.Stdout, os.Stderr))
	}
	do := func() error { return run(ctx, os.Args[1:]) }
	if len(os.Args) == 2 && os.Args[1] == agent.ArrivalVerb {
		do = func() error { return agent.FollowArrival(os.Stdin, os.Stdout) }
	}
	err := do()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "fairlead-agent:", err)
	var wrong usageError
	if errors.As(err, &wrong) {
		os.Exit(2)
	}
	os.Exit(1)
}

func run(ctx context.Context, args []string) error {
	a := &agent.Agent{Version: cmp.Or(version, "devel"), Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	var o options
	if err := o.read(a, args); err != nil {
		return err
	}

	host, err := kernel.Open("")
	if err != nil {
		return err
	}
	a.World = &kernel.World{Host: host}
	defer a.World.Close()
	if o.remove {
		return a.Remove(ctx)
	}
	if o.metrics != "" {
		if err := a.ServeMetrics(ctx, o.metrics); err != nil {
			return err
		}
	}

	if o.shared.wanted() {
		return o.shared.run(ctx, a)
	}
	config, err := configOf(o.kubeconfig)
	if err != nil {
		return err
	}
	meter := new(nodes.Meter)
	a.Meter = meter
	return watch(ctx, a, meter.Measure(config), o.available)
}

// configOf returns how to reach the API server.
func configOf(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := nodes.InCluster()
		if _, serr := os.Stat(defaultKubeconfig); serr != nil || !errors.Is(err, nodes.ErrNotInCluster) {
			return c, err
		}
		kubeconfig = defaultKubeconfig
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// begin makes sure that no other agent has the devices, reads the node's key, and opens the socket that `fairlead cluster
// status` asks.
func begin(a *agent.Agent) (devices io.Closer, t directory.Tunnel, l net.Listener, err error) {
	if devices, err = a.LockDevice(); err != nil {
		return nil, t, nil, err
	}
	if t, err = a.LoadKey(); err == nil {
		l, err = agent.Listen(agentstatus.Socket(a.Network))
	}
	if err != nil {
		return nil, t, nil, errors.Join(err, devices.Close())
	}
	return devices, t, l, nil
}

// watch runs the agent with the nodes that the API server tells. Available says that the node's condition NetworkUnavailable is
// cleared.
func watch(ctx context.Context, a *agent.Agent, config *rest.Config, available bool) error {
	updates := make(chan []directory.Node)
	failed := make(chan error, 1)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	config, err := nodes.CloseLost(ctx, config, stop)
	if err != nil {
		return err
	}
	a.Publish = func(ctx context.Context, t directory.Tunnel) error {
		return nodes.PublishTunnel(ctx, config, a.Node, t)
	}
	device, _, l, err := begin(a)
	if err != nil {
		return err
	}
	defer device.Close()
	go a.Serve(ctx, l)
	go func() {
		if err := nodes.CountPolicies(ctx, config, a.SetPolicies); !errors.Is(err, context.Canceled) {
			a.Log.Error("NetworkPolicy objects are not counted", "cause", err)
		}
	}()
	services := make(chan []netip.Prefix)
	a.Services = services
	answered := make(chan struct{}) // the server has said which ranges Services have, so no node gets one of them
	var once sync.Once
	go func() {
		err := nodes.ServiceRanges(ctx, config, func(ranges []netip.Prefix) {
			select {
			case services <- ranges:
			case <-ctx.Done():
			}
			once.Do(func() { close(answered) })
		})
		if !errors.Is(err, context.Canceled) {
			a.Log.Error("the ranges of Services are unknown", "cause", err)
		}
	}()
	if available {
		a.Ready = func() { go keepAvailable(ctx, a, config) }
	}
	go func() {
		select {
		case <-answered:
		case <-ctx.Done():
		}
		failed <- nodes.Watch(ctx, config, a.Cluster, func(list []directory.Node) {
			select {
			case updates <- list:
			case <-ctx.Done():
			}
		}, a.SetFailure)
		stop(nil)
	}()
	if err := a.Run(ctx, updates); err != nil {
		return err
	}
	stop(nil)
	if err := <-failed; !errors.Is(err, context.Canceled) {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// keepAvailable clears the node's condition NetworkUnavailable until ctx ends.
func keepAvailable(ctx context.Context, a *agent.Agent, config *rest.Config) {
	const text = "the condition NetworkUnavailable of this node is not cleared"
	err := nodes.KeepNetworkAvailable(ctx, config, a.Node, func(err error) { a.Log.Error(text, "cause", err) })
	if !errors.Is(err, context.Canceled) {
		a.Log.Error(text, "cause", err)
	}
}
