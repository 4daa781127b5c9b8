package cli

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/repair"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

func (a *app) firewallCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "firewall", GroupID: "attach",
		Short: "Hand over the packet filter rules of attachments",
	}
	c.AddCommand(a.handoverCommand())
	return c
}

// A handedOver is an attachment as handover prints it.
type handedOver struct {
	attached
	State   repair.State `json:"state"`
	Made    []string     `json:"made,omitempty"`
	Lost    []string     `json:"lost,omitempty"`
	Failed  []string     `json:"failed,omitempty"`
	NotOurs []string     `json:"notOurs,omitempty"`
}

func (a *app) handoverCommand() *cobra.Command {
	r := repair.Repairer{Firewall: true}
	var back bool
	var backend string
	c := &cobra.Command{
		Use: "handover --to-reference", Args: operands(""),
		Short: "Rewrite the rules of all attachments as the reference plugins make them",
		Long: `Rewrite the packet filter rules of every attachment as rules of the reference plugins (containernetworking),
under their names, so that the reference plugins can check and remove them. Then remove Fairlead's rules. Ports stay
published all the time. This is the first step of going back to the reference plugins: see docs/migration.md.

The command names what the reference plugins cannot express, and where their DEL will fail. From then on fairlead
repair leaves these attachments alone, until they are attached anew.`,
		Example: `  fairlead firewall handover --to-reference --dry-run     say what would be made
  fairlead firewall handover --to-reference`,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case !back:
				return misused(c, fmt.Errorf("--to-reference is missing: it says that the rules are to be the reference's"))
			case backend != "iptables" && backend != "nftables":
				return usage("--backend %q: want iptables or nftables", backend)
			case r.Network != "" && spec.ValidName(r.Network) != nil:
				return usage("--network %q: %w", r.Network, spec.ValidName(r.Network))
			}
			r.Runtime, r.Plugins = &attach.Runtime{Stderr: newScreen(a.stderr)}, plugin.All()
			r.Now, r.Foreign = configured, foreign()
			if err := a.known(r.Network); err != nil {
				return err
			}
			defer a.logLater()()
			report, err := r.HandOver(a.interruptible(), backend)
			if err != nil {
				return err
			}
			if !report.OK() {
				a.status = exitDrift
			}
			return a.printHandover(report, r.DryRun)
		},
	}
	c.Flags().BoolVar(&back, "to-reference", false, "hand over to the reference plugins")
	c.Flags().StringVar(&backend, "backend", "iptables",
		"`BACKEND` that the reference plugins use on this host: iptables, or nftables (from their version 1.6)")
	c.Flags().StringVar(&r.Network, "network", "", "only the attachments of the network `NET`")
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "change nothing")
	c.RegisterFlagCompletionFunc("backend", cobra.FixedCompletions([]string{"iptables", "nftables"},
		cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("network", completeNetworks)
	return c
}

func (a *app) printHandover(report *repair.Report, dry bool) error {
	all := []handedOver{}
	for _, f := range report.Findings {
		all = append(all, handedOver{attached{Network: f.Owner.Network, ContainerID: f.Owner.ContainerID, IfName: f.Owner.IfName, Netns: f.Netns},
			f.State, f.Repaired, f.Lost, f.Drift, f.NotOurs})
	}
	if a.json() {
		return printJSON(a.stdout, struct {
			OK          bool         `json:"ok"`
			Attachments []handedOver `json:"attachments"`
			Problems    []string     `json:"problems,omitempty"`
		}{report.OK(), all, report.Problems})
	}
	s := a.style(a.stdout)
	for _, f := range all {
		state := s.doubt(string(f.State))
		switch f.State {
		case repair.Handed, repair.Before, repair.ToHand:
			state = s.good(string(f.State))
		case repair.Broken:
			state = s.bad(string(f.State))
		}
		node := &tree{text: sprintf("%s/%s/%s %s", f.Network, f.ContainerID, f.IfName, state)}
		for _, line := range f.Made {
			node.add("%s", line)
		}
		for _, line := range f.Failed {
			node.add("%s", s.bad(line))
		}
		for _, line := range f.Lost {
			node.add("%s", s.doubt("lost: "+line))
		}
		for _, line := range f.NotOurs {
			node.add("%s", s.doubt("not ours: "+line))
		}
		node.print(a.stdout, s)
	}
	if len(all) == 0 && len(report.Problems) == 0 {
		a.print("nothing is attached\n")
	}
	for _, p := range report.Problems {
		a.note("%s", p)
	}
	if dry {
		a.note("nothing was changed")
	}
	return nil
}
