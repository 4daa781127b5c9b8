// Command fairlead-agent connects the containers of a Kubernetes node with those of the other nodes, by VXLAN.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-cni/fairlead/cluster/agent"
	"github.com/fairlead-cni/fairlead/cluster/directory"
	"github.com/fairlead-cni/fairlead/cluster/nodes"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "fairlead-agent:", err)
		os.Exit(1)
	}
}

const usage = `Connect the containers of this node with those of the other nodes of a Kubernetes cluster.

fairlead-agent reads the Node objects, and writes nothing to the API server. It keeps a VXLAN device and a route to the
containers of each node, and grants the node's podCIDRs to the plugin cluster (/run/fairlead/cluster/NETWORK.json). It
needs root, and the right to list and watch nodes.

  fairlead-agent --kubeconfig /etc/kubernetes/agent.conf --node "$(hostname)"

Flags:
`

func run(ctx context.Context, args []string) error {
	a := &agent.Agent{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	hostname, _ := os.Hostname()
	flags := flag.NewFlagSet("fairlead-agent", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	kubeconfig := flags.String("kubeconfig", "", "`FILE` that says where the API server is (default: that of the pod)")
	flags.StringVar(&a.Cluster, "cluster", "kubernetes", "`NAME` of the cluster, the same on all nodes")
	flags.StringVar(&a.Network, "network", "pods", "`NAME` of the network whose ipam is cluster")
	flags.StringVar(&a.Node, "node", cmp.Or(os.Getenv("NODE_NAME"), hostname), "`NAME` of this node in the cluster")
	flags.StringVar(&a.Device, "device", "fairlead-vx", "`NAME` of the VXLAN device")
	id := flags.Uint("vxlan-id", 4118, "network identifier, the same on all nodes")
	port := flags.Uint("vxlan-port", 8472, "UDP port, the same on all nodes")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("%q: takes no arguments; fairlead-agent -h lists the flags", flags.Args())
	case spec.ValidName(a.Network) != nil:
		return fmt.Errorf("--network: %w", spec.ValidName(a.Network))
	case *id == 0 || *id >= 1<<24:
		return fmt.Errorf("--vxlan-id: %d: want 1 to 16777215", *id)
	case *port == 0 || *port >= 1<<16:
		return fmt.Errorf("--vxlan-port: %d: want 1 to 65535", *port)
	}
	a.ID, a.Port = uint32(*id), uint16(*port)
	a.Saved.Path = filepath.Join("/var/lib/fairlead/cluster", a.Network+".json")

	config, err := configOf(*kubeconfig)
	if err != nil {
		return err
	}
	host, err := kernel.Open("")
	if err != nil {
		return err
	}
	a.World = &kernel.World{Host: host}
	defer a.World.Close()
	return watch(ctx, a, config)
}

// configOf returns how to reach the API server.
func configOf(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return nodes.InCluster()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// watch runs the agent with the nodes that the API server tells.
func watch(ctx context.Context, a *agent.Agent, config *rest.Config) error {
	updates := make(chan []directory.Node)
	failed := make(chan error, 1)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		failed <- nodes.Watch(ctx, config, a.Cluster, func(list []directory.Node) {
			select {
			case updates <- list:
			case <-ctx.Done():
			}
		})
		stop()
	}()
	if err := a.Run(ctx, updates); err != nil {
		return err
	}
	stop()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
