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
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-cni/fairlead/cluster/agent"
	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/cluster/fleet"
	"github.com/fairlead-cni/fairlead/cluster/nodes"
	"github.com/fairlead-cni/fairlead/cluster/probe"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/kernel"
)

// longestDevice is the longest name of a device, of 15 characters, less the 6 of that for nodes with IPv6 addresses.
const longestDevice = 14

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

// A usageError says what is wrong with the flags.
type usageError struct{ error }

const usage = `Connect the containers of this node with those of the other nodes of a cluster.

fairlead-agent reads the Node objects, and writes nothing to the API server without --clear-network-unavailable and
--mode wireguard. It keeps a VXLAN or WireGuard device and a route to the containers of each node, and grants the node's
podCIDRs to the plugin cluster (/run/fairlead/cluster/NETWORK.json). It needs root, and the right to list and watch nodes.

With --mode wireguard, packets between nodes are encrypted. Each node makes a private key, which stays in
/var/lib/cni/fairlead/cluster/NETWORK.wireguard.key, and publishes the public key: in its Node object, for which it needs the
right to patch that, or in etcd.

With --etcd, the cluster is nodes without Kubernetes. They share pools of addresses in etcd: each node owns blocks of them.
"fairlead cluster init" makes such a cluster.

With --conf, it installs the network's configuration when the grant, the device and the routes stand: the node is ready
then. When it ends, everything stays as it is. --remove removes all of it.

  fairlead-agent --kubeconfig /etc/kubernetes/agent.conf --node "$(hostname)"
  fairlead-agent --etcd https://192.0.2.1:2379 --etcd-cacert /etc/fairlead/ca.crt --network fleet
  fairlead-agent --remove --conf /etc/fairlead/10-pods.conflist

Flags:
`

func run(ctx context.Context, args []string) error {
	a := &agent.Agent{Version: cmp.Or(version, "devel"), Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	hostname, _ := os.Hostname()
	flags := flag.NewFlagSet("fairlead-agent", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // a wrong flag is one line
	flags.Usage = func() {}
	kubeconfig := flags.String("kubeconfig", "", "`FILE` that says where the API server is (default: that of the pod, or "+defaultKubeconfig+")")
	flags.StringVar(&a.Cluster, "cluster", "", "`NAME` of the cluster, the same on all nodes (default: kubernetes; with --etcd: "+
		"fleet)")
	flags.StringVar(&a.Network, "network", "", "`NAME` of the network whose ipam is cluster (default: pods)")
	flags.StringVar(&a.Node, "node", cmp.Or(os.Getenv("NODE_NAME"), hostname), "`NAME` of this node in the cluster")
	flags.StringVar(&a.Device, "device", "fairlead-vx", "`NAME` of the VXLAN device; "+
		"that for nodes with IPv6 addresses has a 6 behind it")
	id := flags.Uint("vxlan-id", 4118, "network identifier, the same on all nodes")
	port := flags.Uint("vxlan-port", 8472, "UDP port, the same on all nodes")
	mode := flags.String("mode", "vxlan", "`MODE`, the same on all nodes: vxlan; direct: by the addresses of nodes on the "+
		"same link, and else by VXLAN; auto: as direct to the nodes that say that packets arrive so; direct-only: never "+
		"by VXLAN; wireguard: encrypted, by WireGuard")
	flags.StringVar(&a.Tunnel.Device, "wireguard-device", "fairlead-wg", "`NAME` of the WireGuard device")
	tunnelPort := flags.Uint("wireguard-port", 51820, "UDP port at which this node receives with --mode wireguard")
	checksums := flags.String("tx-checksum", "auto", "on: the network card computes the checksums of packets into VXLAN, if "+
		"it can; off: the kernel does; auto: the kernel if datagrams arrive only so")
	flags.IntVar(&a.MTU, "mtu", 0, "`BYTES` of the largest packet between containers (default: what the uplinks carry)")
	flags.StringVar(&a.Conflist.Source, "conf", "", "`FILE`.conflist to install when pods can be attached (default: none)")
	flags.StringVar(&a.Conflist.Dir, "conf-dir", "/etc/cni/net.d", "`DIR` where the runtime searches for networks")
	remove := flags.Bool("remove", false, "remove from this node what agents made, and end; needs no API server")
	probes := flags.Uint("probe-port", 8473, "UDP port at which agents tell each other what they received, the same on all "+
		"nodes; 0: the paths to other nodes are not tested")
	flags.DurationVar(&a.ProbeEvery, "probe-interval", time.Minute, "time between two tests of the path to a node, 15s or more")
	metrics := flags.String("metrics", "", "`ADDRESS` for /metrics, /healthz and /readyz, 127.0.0.1:PORT or unix:PATH; "+
		"anybody who reaches it gets them (default: only the socket that status asks)")
	secret := flags.String("key-file", "", "`FILE` with 32 secret bytes or more, the same on all nodes, by which agents ask each "+
		"other where a packet goes (default: what etcd keeps for them; without etcd, they do not ask)")
	available := flags.Bool("clear-network-unavailable", false, "set the condition NetworkUnavailable of this node to False when "+
		"pods can be attached; needs the right to patch nodes/status")
	var shared sharedPools
	shared.flags(flags)
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(os.Stdout)
		fmt.Print(usage)
		flags.PrintDefaults()
		return err
	}
	if err != nil {
		return usageError{fmt.Errorf("%w; fairlead-agent -h lists the flags", err)}
	}
	if err := shared.read(a, *kubeconfig); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("%q: takes no arguments; fairlead-agent -h lists the flags", flags.Args())
	case etcd.ValidNetwork(a.Network) != nil:
		return fmt.Errorf("--network: %w", etcd.ValidNetwork(a.Network))
	case shared.wanted() && (*kubeconfig != "" || *available):
		return errors.New("--etcd: the nodes come from etcd or from Kubernetes: want no --kubeconfig and no " +
			"--clear-network-unavailable")
	case etcd.ValidNode(a.Node) != nil:
		return fmt.Errorf("--node: %w", etcd.ValidNode(a.Node))
	case a.Device == "" || len(a.Device) > longestDevice || strings.ContainsAny(a.Device, "/ \t\n:"):
		return fmt.Errorf("--device: %q: want 1 to %d characters, without spaces, / and :", a.Device, longestDevice)
	case a.Tunnel.Device == "" || len(a.Tunnel.Device) > longestDevice+1 || strings.ContainsAny(a.Tunnel.Device, "/ \t\n:") ||
		a.Tunnel.Device == a.Device || a.Tunnel.Device == a.Device+"6":
		return fmt.Errorf("--wireguard-device: %q: want 1 to %d characters, without spaces, / and :, and not the name in "+
			"--device", a.Tunnel.Device, longestDevice+1)
	case *tunnelPort == 0 || *tunnelPort >= 1<<16 || *tunnelPort == *port || *tunnelPort == *probes:
		return fmt.Errorf("--wireguard-port: %d: want 1 to 65535, and not --vxlan-port or --probe-port", *tunnelPort)
	case *id == 0 || *id >= 1<<24:
		return fmt.Errorf("--vxlan-id: %d: want 1 to 16777215", *id)
	case *port == 0 || *port >= 1<<16:
		return fmt.Errorf("--vxlan-port: %d: want 1 to 65535", *port)
	case *probes >= 1<<16 || *probes == *port:
		return fmt.Errorf("--probe-port: %d: want 0 to 65535, and not --vxlan-port", *probes)
	}
	if a.ProbeEvery < probe.LeastEvery {
		return fmt.Errorf("--probe-interval: %v: want %v or more", a.ProbeEvery, probe.LeastEvery)
	}
	if a.Mode, err = agent.ParseMode(*mode); err != nil {
		return fmt.Errorf("--mode: %w", err)
	}
	if a.Mode == agent.Auto && *probes == 0 {
		return errors.New("--mode auto tests the paths to other nodes: it needs a --probe-port")
	}
	if a.Checksums, err = agent.ParseChecksums(*checksums); err != nil {
		return fmt.Errorf("--tx-checksum: %w", err)
	}
	if a.MTU != 0 && (a.MTU < 1280 || a.MTU > 65535) {
		return fmt.Errorf("--mtu: %d: want 1280 to 65535 bytes, or 0", a.MTU)
	}
	if *secret != "" {
		a.Secret = func() ([]byte, error) { return plainfile.Read(*secret, plainfile.MaxSize) }
	}
	a.ProbePort = uint16(*probes)
	a.ID, a.Port = uint32(*id), uint16(*port)
	a.Tunnel.Port = uint16(*tunnelPort)
	a.Saved.Path = agentstatus.Saved(a.Network)
	a.Tunnel.KeyFile = strings.TrimSuffix(a.Saved.Path, ".json") + ".wireguard.key"

	host, err := kernel.Open("")
	if err != nil {
		return err
	}
	a.World = &kernel.World{Host: host}
	defer a.World.Close()
	if *remove {
		return a.Remove(ctx)
	}
	if *metrics != "" {
		if err := a.ServeMetrics(ctx, *metrics); err != nil {
			return err
		}
	}
	if shared.wanted() {
		return shared.run(ctx, a)
	}
	config, err := configOf(*kubeconfig)
	if err != nil {
		return err
	}
	meter := new(nodes.Meter)
	a.Meter = meter
	return watch(ctx, a, meter.Measure(config), *available)
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
