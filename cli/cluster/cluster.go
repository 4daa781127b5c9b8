// Package cluster is fairlead cluster: what fairlead-agent does for this node. The agent is a program of its own.
package cluster

import (
	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/spf13/cobra"
)

// Command is `fairlead cluster`.
func Command(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use: "cluster", GroupID: "look",
		Short: "Inspect this node's way to the containers of other nodes, and take over leases",
		Long: `Inspect this node's way to the containers of other nodes, which fairlead-agent keeps. No command of this group asks
the cluster: they ask the agent of this node, or read its files.`,
	}
	c.AddCommand(statusCommand(a), adoptCommand(a))
	return c
}
