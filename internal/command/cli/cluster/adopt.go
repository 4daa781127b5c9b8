package cluster

import (
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// adopted is the answer of adopt as a document.
type adopted struct {
	Network string          `json:"network"`
	DryRun  bool            `json:"dryRun"`
	From    []ipam.Adoption `json:"from"`
}

func adoptCommand(a *app.App) *cobra.Command {
	var from []string
	var shared string
	var dry bool
	c := &cobra.Command{
		Use: "adopt [NET]", Args: app.Operands("[NET]"),
		Short: "Take over the leases of another network of this node",
		Long: `Take over the leases of another network that has this node's range, such as flannel's or kindnet's, so that NET gives
their addresses to no other container. NET is the network whose IPAM plugin is cluster; by default pods. Its file need not
exist yet.

No container is touched, and the leases of the other network stay. A lease keeps its container: DEL and GC of NET
release it. Without --from, the networks with a lease in the range of the grant are taken, below /var/lib/cni/networks.
If a lease is outside of the grant's range, or belongs to another container in NET, each one is listed and nothing is
changed. After an interruption, run the command again.

Without a fleet, fairlead-agent does this itself before it installs the network's configuration for the first time.

With --pool, on a node of a fleet, the leases of NET's pool are taken, and the agent claims the blocks that have them:
all, or none. If another node owns one of them, its addresses are listed and nothing is changed. See docs/fleet.md.`,
		Example: `  fairlead cluster adopt --dry-run
  fairlead cluster adopt pods --from cbr0
  fairlead cluster adopt pods --from /run/cni-ipam-state/kindnet
  fairlead cluster adopt --pool main --dry-run`,
		ValidArgsFunction: netconf.CompleteNetworks,
		RunE: func(c *cobra.Command, args []string) error {
			network, err := networkOf(args)
			if err != nil {
				return err
			}
			if shared != "" {
				line := []string{"adopt", network, "--pool", shared, fmt.Sprint("--dry-run=", dry), "-o", a.Output}
				for _, name := range from {
					line = append(line, "--from", name)
				}
				return runAgent(line...)
			}
			pool, err := poolOf(a, network)
			if err != nil {
				return err
			}
			all, err := ipam.Adopt(c.Context(), pool.Ledger, network, from, dry)
			if err != nil {
				const hint = "Detach the containers of these leases, or release those of containers that are gone " +
					"(`fairlead ipam release`)."
				return app.Fail(app.ExitFailure, hint, "%w", err)
			}
			if a.JSON() {
				return a.PrintJSON(adopted{network, dry, all})
			}
			printAdopted(a, network, all, dry)
			return nil
		},
	}
	c.Flags().StringVar(&shared, "pool", "", "claim the blocks with the leases from the pool `NAME` of a fleet")
	c.Flags().StringArrayVar(&from, "from", nil, "take the leases of the network or directory `FROM`; may be repeated")
	c.Flags().BoolVar(&dry, "dry-run", false, "list what would be taken over, and change nothing")
	return c
}

// poolOf returns the leases of a network that allocates from a grant, also before the network has a file.
func poolOf(a *app.App, network string) (netconf.Pool, error) {
	if _, err := grant.Read(network); err != nil {
		hint := ""
		var why *grant.Error
		if errors.As(err, &why) {
			hint = why.Hint
		}
		return netconf.Pool{}, app.Fail(app.ExitFailure, hint, "%w", err)
	}
	n, err := netconf.Find(a, network)
	if err == nil {
		return netconf.PoolOf(n.List, false)
	}
	if !errors.Is(err, spec.ErrNotFound) {
		return netconf.Pool{}, err
	}
	const likely = `{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"ptp","ipam":{"type":"cluster"}}]}`
	list, err := spec.ParseList(fmt.Appendf(nil, likely, network))
	if err != nil {
		return netconf.Pool{}, err
	}
	return netconf.PoolOf(list, false)
}

func printAdopted(a *app.App, network string, all []ipam.Adoption, dry bool) {
	if len(all) == 0 {
		a.Print("no other network has a lease in the range of %s\n", network)
		return
	}
	what := "took over"
	if dry {
		what = "would take over"
	}
	for _, one := range all {
		a.Print("%s %d of %d leases of %s\n", what, len(one.Added), one.Leases, one.From)
		for _, l := range one.Added {
			a.Print("  %s of %s %s\n", l.Address, l.ContainerID, l.IfName)
		}
	}
	if dry {
		a.Note("nothing was changed")
	}
}
