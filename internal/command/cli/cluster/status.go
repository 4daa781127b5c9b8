package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/fairlead-cni/fairlead/internal/agentstatus"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// patience is how long an agent may take for its answer, which it has at hand.
const patience = 10 * time.Second

// An Answer is that of status as a document.
type Answer struct {
	Live  bool   `json:"live"`            // the agent answered; else this is of its files and of the kernel
	Cause string `json:"cause,omitempty"` // why it did not answer
	*agentstatus.Status
}

func statusCommand(a *app.App) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "status [NET]", Args: app.Operands("[NET]"),
		Short: "Show the nodes and pools of the cluster, and how this node reaches their containers",
		Long: `Show the nodes of the cluster, and how this node reaches their containers. NET is the network whose IPAM plugin is
cluster; by default pods.

The agent of this node answers. If it does not, the answer is what it last saved, with the ways that the kernel has:
containers keep them while no agent runs.

The agent tests the path to each node every minute: small packets and packets as long as the MTU allows, from pod range
to pod range, and a datagram between the agents, by which it knows the direction in which packets are lost. Of a cluster
with more than 30 nodes, the nodes without a problem are counted and not listed.

Exit status: 0 all nodes have a way and no test of a path failed, 1 the agent does not answer, 3 something is not as it should be, 4 no agent has
run on this node for NET.`,
		Example:           "  fairlead cluster status\n  fairlead cluster status -o json",
		ValidArgsFunction: netconf.CompleteNetworks,
		RunE: func(c *cobra.Command, args []string) error {
			network, err := networkOf(args)
			if err != nil {
				return err
			}
			told, err := Ask(c.Context(), network)
			if err != nil {
				return err
			}
			switch {
			case !told.Live:
				a.Status = app.ExitFailure
			case len(told.Problems) > 0:
				a.Status = app.ExitFault
			}
			if a.JSON() {
				return a.PrintJSON(told)
			}
			printStatus(a, told, all)
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "list all nodes, also of a large cluster")
	return c
}

// networkOf returns the network that the arguments name, or the default one of fairlead-agent.
func networkOf(args []string) (string, error) {
	network := append(args, "pods")[0]
	if err := spec.ValidName(network); err != nil {
		return "", app.Usage("%w", err)
	}
	return network, nil
}

// Ask asks the agent of a network, and else its files. Where no agent has run, the error is [fs.ErrNotExist].
func Ask(ctx context.Context, network string) (Answer, error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	s, err := agentstatus.Ask(ctx, network)
	if err == nil {
		return Answer{Live: true, Status: s}, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return Answer{}, app.Fail(app.ExitFailure, app.HintPrivilege, "ask fairlead-agent: %w", err)
	}
	s, lerr := last(network)
	if errors.Is(lerr, fs.ErrNotExist) {
		return Answer{}, app.Fail(app.ExitNotFound,
			"Start fairlead-agent on this node (docs/cluster.md), or name the network that its --network names.",
			"no fairlead-agent has run on this node for network %s: %w", network, lerr)
	}
	return Answer{Cause: err.Error(), Status: s}, lerr
}

func printStatus(a *app.App, told Answer, all bool) {
	s := a.Style(a.Stdout)
	a.Print("node %s of cluster %s, network %s\n", orUnknown(told.Node), told.Cluster, told.Network)
	for _, d := range told.Devices {
		a.Print("device %s: %s, MTU %d\n", d.Name, deviceText(d), d.MTU)
	}
	switch {
	case !told.Live:
		a.Print("%s: %s\n", s.Bad("the agent does not answer"), told.Cause)
		a.Print("the nodes are those that it last saved, and the ways those that the kernel has\n")
		a.Print("start fairlead-agent, or read in its log why it ended\n")
	case told.Heard.IsZero():
		a.Print("agent %s; %s\n", told.Agent, s.Doubt("the cluster has not told its nodes since the agent started"))
	default:
		a.Print("agent %s, told of a change by the cluster %s ago\n", told.Agent, age(told.Heard))
	}
	printNodes(a, told.Nodes, all)
	printPools(a, told.Pools)
	if len(told.Pools) == 0 {
		printPolicies(a, told)
	}
	for _, p := range told.Problems {
		a.Print("%s: %s\n", s.Bad("problem"), p.Text)
	}
}

// deviceText says of a device what is known: the kernel alone does not tell all.
func deviceText(d agentstatus.Device) string {
	if d.Kind != wireguard {
		return fmt.Sprintf("VXLAN id %d, UDP port %d, from %v%s", d.ID, d.Port, d.Local, app.Prefixed(" on ", d.Uplink))
	}
	if d.Port == 0 {
		return "WireGuard"
	}
	return fmt.Sprintf("WireGuard, UDP port %d%s, public key %s", d.Port, app.Prefixed(" on ", d.Uplink), d.PublicKey)
}

// printPools prints a row for each pool that the nodes share.
func printPools(a *app.App, pools []agentstatus.Pool) {
	if len(pools) == 0 {
		return
	}
	t := term.Table{{"POOL", "ADDRESSES", "BLOCKS OWNED", "LEASED"}}
	for _, p := range pools {
		t = append(t, []any{p.Name, p.Prefix.String(), fmt.Sprintf("%d of %s", p.Owned, p.Blocks),
			fmt.Sprintf("%d of %s", p.Leased, p.Usable)})
	}
	a.Draw(t)
}

// printPolicies warns of NetworkPolicy objects, or says that it is not known whether there are any.
func printPolicies(a *app.App, told Answer) {
	s := a.Style(a.Stdout)
	switch {
	case told.Live && told.Policies == nil:
		a.Print("NetworkPolicy objects are not counted: the agent was not told of them, or may not list them\n")
	case told.Live && *told.Policies > 0:
		a.Print("%s: nothing enforces the %d NetworkPolicy objects of this cluster\n", s.Doubt("warning"),
			*told.Policies)
	}
}

func age(t time.Time) string { return max(time.Since(t), 0).Round(time.Second).String() }
