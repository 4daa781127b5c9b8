package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/cluster/agent"
	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/cluster/probe"
	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
)

// longestDevice is the longest name of a device, of 15 characters, less the 6 of that for nodes with IPv6 addresses.
const longestDevice = 14

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

// options are what the flags say beside what they set of the agent.
type options struct {
	kubeconfig, mode, checksums, metrics, secret string
	id, port, tunnelPort, probes                 uint
	remove, available                            bool
	shared                                       sharedPools
}

// read reads the flags into o and a. It prints the help if they ask for it, and returns flag.ErrHelp.
func (o *options) read(a *agent.Agent, args []string) error {
	flags := flag.NewFlagSet("fairlead-agent", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // a wrong flag is one line
	flags.Usage = func() {}
	o.define(a, flags)
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

	if err := o.shared.read(a, o.kubeconfig); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q: takes no arguments; fairlead-agent -h lists the flags", flags.Args())
	}
	for _, check := range []func(*agent.Agent) error{o.checkNames, o.checkNumbers, o.checkPaths} {
		if err := check(a); err != nil {
			return err
		}
	}
	o.apply(a)
	return nil
}

func (o *options) define(a *agent.Agent, flags *flag.FlagSet) {
	hostname, _ := os.Hostname()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`FILE` that says where the API server is (default: that of the pod, or "+defaultKubeconfig+")")
	flags.StringVar(&a.Cluster, "cluster", "", "`NAME` of the cluster, the same on all nodes (default: kubernetes; with --etcd: "+
		"fleet)")
	flags.StringVar(&a.Network, "network", "", "`NAME` of the network whose ipam is cluster (default: pods)")
	flags.StringVar(&a.Node, "node", cmp.Or(os.Getenv("NODE_NAME"), hostname), "`NAME` of this node in the cluster")
	flags.StringVar(&a.Device, "device", "fairlead-vx", "`NAME` of the VXLAN device; "+
		"that for nodes with IPv6 addresses has a 6 behind it")
	flags.UintVar(&o.id, "vxlan-id", 4118, "network identifier, the same on all nodes")
	flags.UintVar(&o.port, "vxlan-port", 8472, "UDP port, the same on all nodes")
	flags.StringVar(&o.mode, "mode", "vxlan", "`MODE`, the same on all nodes: vxlan; direct: by the addresses of nodes on the "+
		"same link, and else by VXLAN; auto: as direct to the nodes that say that packets arrive so; direct-only: never "+
		"by VXLAN; wireguard: encrypted, by WireGuard")
	flags.StringVar(&a.Tunnel.Device, "wireguard-device", "fairlead-wg", "`NAME` of the WireGuard device")
	flags.UintVar(&o.tunnelPort, "wireguard-port", 51820, "UDP port at which this node receives with --mode wireguard")
	flags.StringVar(&o.checksums, "tx-checksum", "auto", "on: the network card computes the checksums of packets into VXLAN, if "+
		"it can; off: the kernel does; auto: the kernel if datagrams arrive only so")
	flags.IntVar(&a.MTU, "mtu", 0, "`BYTES` of the largest packet between containers (default: what the uplinks carry)")
	flags.StringVar(&a.Conflist.Source, "conf", "", "`FILE`.conflist to install when pods can be attached (default: none)")
	flags.StringVar(&a.Conflist.Dir, "conf-dir", "/etc/cni/net.d", "`DIR` where the runtime searches for networks")
	flags.BoolVar(&o.remove, "remove", false, "remove from this node what agents made, and end; needs no API server")
	flags.UintVar(&o.probes, "probe-port", 8473, "UDP port at which agents tell each other what they received, the same on all "+
		"nodes; 0: the paths to other nodes are not tested")
	flags.DurationVar(&a.ProbeEvery, "probe-interval", time.Minute, "time between two tests of the path to a node, 15s or more")
	flags.StringVar(&o.metrics, "metrics", "", "`ADDRESS` for /metrics, /healthz and /readyz, 127.0.0.1:PORT or unix:PATH; "+
		"anybody who reaches it gets them (default: only the socket that status asks)")
	flags.StringVar(&o.secret, "key-file", "", "`FILE` with 32 secret bytes or more, the same on all nodes, by which agents ask each "+
		"other where a packet goes (default: what etcd keeps for them; without etcd, they do not ask)")
	flags.BoolVar(&o.available, "clear-network-unavailable", false, "set the condition NetworkUnavailable of this node to False when "+
		"pods can be attached; needs the right to patch nodes/status")
	o.shared.flags(flags)
}

// isDevice reports whether a link can have a name, which has at most longest characters.
func isDevice(name string, longest int) bool {
	return name != "" && len(name) <= longest && !strings.ContainsAny(name, "/ \t\n:")
}

// checkNames checks the names of the network, the node and the devices, and that the nodes come from one place.
func (o *options) checkNames(a *agent.Agent) error {
	if err := etcd.ValidNetwork(a.Network); err != nil {
		return fmt.Errorf("--network: %w", err)
	}
	if o.shared.wanted() && (o.kubeconfig != "" || o.available) {
		return errors.New("--etcd: the nodes come from etcd or from Kubernetes: want no --kubeconfig and no " +
			"--clear-network-unavailable")
	}
	if err := etcd.ValidNode(a.Node); err != nil {
		return fmt.Errorf("--node: %w", err)
	}
	if !isDevice(a.Device, longestDevice) {
		return fmt.Errorf("--device: %q: want 1 to %d characters, without spaces, / and :", a.Device, longestDevice)
	}
	isVXLAN := a.Tunnel.Device == a.Device || a.Tunnel.Device == a.Device+"6"
	if !isDevice(a.Tunnel.Device, longestDevice+1) || isVXLAN {
		return fmt.Errorf("--wireguard-device: %q: want 1 to %d characters, without spaces, / and :, and not the name in "+
			"--device", a.Tunnel.Device, longestDevice+1)
	}
	return nil
}

// checkNumbers checks ports and identifiers, which have to differ where they are of one protocol.
func (o *options) checkNumbers(*agent.Agent) error {
	switch {
	case o.tunnelPort == 0 || o.tunnelPort >= 1<<16 || o.tunnelPort == o.port || o.tunnelPort == o.probes:
		return fmt.Errorf("--wireguard-port: %d: want 1 to 65535, and not --vxlan-port or --probe-port", o.tunnelPort)
	case o.id == 0 || o.id >= 1<<24:
		return fmt.Errorf("--vxlan-id: %d: want 1 to 16777215", o.id)
	case o.port == 0 || o.port >= 1<<16:
		return fmt.Errorf("--vxlan-port: %d: want 1 to 65535", o.port)
	case o.probes >= 1<<16 || o.probes == o.port:
		return fmt.Errorf("--probe-port: %d: want 0 to 65535, and not --vxlan-port", o.probes)
	}
	return nil
}

// checkPaths checks how packets go to other nodes, and how these paths are tested.
func (o *options) checkPaths(a *agent.Agent) (err error) {
	if a.ProbeEvery < probe.LeastEvery {
		return fmt.Errorf("--probe-interval: %v: want %v or more", a.ProbeEvery, probe.LeastEvery)
	}
	if a.Mode, err = agent.ParseMode(o.mode); err != nil {
		return fmt.Errorf("--mode: %w", err)
	}
	if a.Mode == agent.Auto && o.probes == 0 {
		return errors.New("--mode auto tests the paths to other nodes: it needs a --probe-port")
	}
	if a.Checksums, err = agent.ParseChecksums(o.checksums); err != nil {
		return fmt.Errorf("--tx-checksum: %w", err)
	}
	if a.MTU != 0 && (a.MTU < 1280 || a.MTU > 65535) {
		return fmt.Errorf("--mtu: %d: want 1280 to 65535 bytes, or 0", a.MTU)
	}
	return nil
}

// apply gives the agent what the flags say by other words than it does.
func (o *options) apply(a *agent.Agent) {
	a.ID, a.Port, a.ProbePort = uint32(o.id), uint16(o.port), uint16(o.probes)
	a.Tunnel.Port = uint16(o.tunnelPort)
	a.Saved.Path = agentstatus.Saved(a.Network)
	a.Tunnel.KeyFile = strings.TrimSuffix(a.Saved.Path, ".json") + ".wireguard.key"
	if o.secret != "" {
		a.Secret = func() ([]byte, error) { return plainfile.Read(o.secret, plainfile.MaxSize) }
	}
}
