// Package cluster is fairlead cluster: what fairlead-agent does for this node. The agent is a program of its own.
package cluster

import (
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/spf13/cobra"
)

// agentProgram is a program of its own, because it has the libraries of Kubernetes and etcd.
const agentProgram = "fairlead-agent"

// Command is `fairlead cluster`.
func Command(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use: "cluster", GroupID: "look",
		Short: "Set up a fleet, and inspect this node's way to the containers of other nodes",
		Long: `Set up a fleet, whose nodes share pools of addresses in an etcd, and inspect this node's way to the containers of
other nodes, which fairlead-agent keeps. status and adopt ask the agent of this node, or read its files. All other
commands are about the whole fleet and ask its etcd: fairlead-agent runs them, which lies beside fairlead or in a
directory of PATH. See docs/fleet.md.`,
		Example: `  fairlead cluster init --pool main=10.64.0.0/12
  fairlead cluster join TOKEN
  fairlead cluster nodes`,
	}
	c.AddCommand(statusCommand(a), adoptCommand(a))
	for _, f := range fleetCommands() {
		c.AddCommand(&cobra.Command{
			Use: f.use, Short: f.short, Example: f.example, DisableFlagParsing: true,
			Long: f.long + "\n\nWith -o json, the answer is a document. --help lists the flags.",
			RunE: func(c *cobra.Command, args []string) error {
				return runAgent(append([]string{c.Name()}, args...)...)
			},
		})
	}
	return c
}

// runAgent runs a command of the fleet.
func runAgent(line ...string) error {
	return app.RunBeside(agentProgram, append([]string{"cluster"}, line...), "Install the package fairlead-agent.")
}

// A fleetCommand is one that fairlead-agent runs.
type fleetCommand struct{ use, short, long, example string }

func fleetCommands() []fleetCommand {
	return []fleetCommand{
		{"init --pool NAME=CIDR [--etcd URL] [FLAG]...", "Make a fleet, and let this node join it",
			`Make a fleet, and let this node join it. The answer has the command that lets further nodes join. Without --etcd,
this machine runs an etcd for the fleet: the program fairlead-store, which is a package of its own. A pool is a range of addresses that is cut into blocks, which the nodes own. A block has 64 addresses; a prefix
length behind the pool says otherwise.`,
			`  fairlead cluster init --pool main=10.64.0.0/12
  fairlead cluster init --etcd https://192.0.2.1:2379 --etcd-cacert ca.crt --pool v4=10.64.0.0/12,25 --pool v6=fd00:9::/64`},
		{"join TOKEN [--store]", "Let this node join the fleet of a token",
			`Let this node join the fleet of a token. It writes /etc/fairlead/fleet.json, and starts fairlead-agent where systemd
runs. With --store and a token of "fairlead cluster token --store", it also runs a member of the fleet's own etcd.`,
			"  fairlead cluster join fairlead1.2v41ehhw\n  fairlead cluster join --store fairlead1.2v41ehhw"},
		{"token [--store]", "Print the token with which further nodes join",
			`Print the token with which further nodes join. It has the key and the password for etcd: keep it secret. With that of
--store, a machine may do everything in the fleet's own etcd.`,
			"  fairlead cluster token"},
		{"members [remove MEMBER]", "List the members of etcd, or remove one that is gone for good",
			`List the members of etcd and whether they answer, or remove one that is gone for good. Three members go on when
one of them is lost.`,
			"  fairlead cluster members\n  fairlead cluster members remove 192.0.2.3"},
		{"nodes", "List the nodes of the fleet, and whether their agents run",
			`List the nodes of the fleet, with their blocks and whether their agents run. How many addresses have leases
is what a node said last: it says much, its first and its last container within two minutes, and less within eleven.`,
			"  fairlead cluster nodes -o json"},
		{"pools [add NAME=CIDR|open NAME|close NAME|remove NAME|reclaim NAME=TIME|fence NAME=drop]",
			"List the pools of the fleet with their use, or change them",
			`List the pools of the fleet with their use, or add one. The length of blocks stays for the life of a pool.
Of a pool that was added as NAME=CIDR,closed, nodes claim only what "fairlead cluster adopt" takes over, until open lets
them claim all. "close" ends that: nodes claim nothing of a pool, and give back each block that no container uses.
"remove" removes a pool of which no node has a block. "reclaim" says after which silence a node loses its blocks of a
pool: manual, which is the default, or 1h and more. "fence" says whether the node cuts off its containers before: drop,
or none, which is the default. Read first what that means (docs/reclaim.md).`,
			"  fairlead cluster pools\n  fairlead cluster pools add more=10.80.0.0/16\n" +
				"  fairlead cluster pools close more\n  fairlead cluster pools remove more\n" +
				"  fairlead cluster pools reclaim spot=2h,fence=drop"},
		{"blocks [NODE]", "List the blocks that nodes own",
			`List the blocks that nodes own, and those that nodes lost, which rest for ten minutes.`,
			"  fairlead cluster blocks web1"},
		{"drain NODE [--undo]", "Let a node claim no more addresses, and give back its blocks",
			`Let a node claim no more addresses, and give back each block that no container uses. Its containers stay. --undo
ends it.`, "  fairlead cluster drain web1\n  fairlead cluster drain --undo web1"},
		{"forget NODE --confirmed-dead", "Take the addresses of a node that does not exist any more",
			`Take the addresses of a node that does not exist any more. Others get them ten minutes later, so you must know that
its containers have ended. If the node returns, it allocates nothing.`, "  fairlead cluster forget web1 --confirmed-dead"},
		{"export [NODE]", "Print the ranges of each node for host-local",
			`Print the ranges of each node as ipam.ranges of host-local, to leave the fleet. The leases are host-local's already.`,
			"  fairlead cluster export web1"},
		{"readopt [--done] [--without NODE]", "End the wait after etcd was restored from a copy",
			`After etcd was restored from a copy, nodes claim nothing until each has said again what it has. This command lists
the nodes that have not; --done ends the wait when all have. --without names nodes whose machines are off.`,
			"  fairlead cluster readopt\n  fairlead cluster readopt --done --without web1,web2"},
	}
}
