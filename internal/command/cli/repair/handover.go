package repair

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// FirewallCommand is `fairlead firewall`.
func FirewallCommand(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use: "firewall", GroupID: "attach",
		Short: "Hand over the packet filter rules of attachments",
	}
	c.AddCommand(handoverCommand(a))
	return c
}

// handedOver is an attachment in the answer of handover.
type handedOver struct {
	attached.Key
	State   repair.State `json:"state"`
	Made    []string     `json:"made,omitempty"`
	Lost    []string     `json:"lost,omitempty"`
	Failed  []string     `json:"failed,omitempty"`
	NotOurs []string     `json:"notOurs,omitempty"`
}

func handoverCommand(a *app.App) *cobra.Command {
	r := repair.Repairer{Firewall: true}
	var back bool
	var backend string
	c := &cobra.Command{
		Use: "handover --to-reference", Args: app.Operands(""),
		Short: "Rewrite the rules of all attachments as the reference plugins make them",
		Long: `Rewrite the packet filter rules of every attachment as rules of the reference plugins (containernetworking),
under their names, so that the reference plugins can check and remove them. Then remove Fairlead's rules. Ports stay
published all the time. This is the first step of going back to the reference plugins: see docs/migration.md.

The command names what the reference plugins cannot express, and where their DEL will fail. From then on fairlead
repair leaves these attachments alone, until they are attached again.

Exit status: 0 done, 1 an attachment could not be handed over.`,
		Example: `  fairlead firewall handover --to-reference --dry-run     list what would be made
  fairlead firewall handover --to-reference`,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case !back:
				return app.Misused(c, fmt.Errorf("--to-reference is missing: it confirms that the rules become "+
					"those of the reference plugins"))
			case backend != "iptables" && backend != "nftables":
				return app.Usage("--backend %q: want iptables or nftables", backend)
			case r.Network != "" && spec.ValidName(r.Network) != nil:
				return app.Usage("--network %q: %w", r.Network, spec.ValidName(r.Network))
			}
			r.Runtime, r.Plugins = &attach.Runtime{Stderr: term.NewScreen(a.Stderr)}, plugin.All()
			r.Now, r.Foreign = netconf.Configured, netconf.Foreign()
			if err := netconf.Known(r.Network); err != nil {
				return err
			}
			defer a.LogLater()()
			report, err := r.HandOver(a.Interruptible(), backend)
			if err != nil {
				return err
			}
			if !report.OK() {
				a.Status = app.ExitFault
			}
			return printHandover(a, report, r.DryRun)
		},
	}
	c.Flags().BoolVar(&back, "to-reference", false, "hand over to the reference plugins")
	c.Flags().StringVar(&backend, "backend", "iptables",
		"`BACKEND` that the reference plugins use on this host: iptables, or nftables (from their version 1.6)")
	c.Flags().StringVar(&r.Network, "network", "", "only the attachments of the network `NET`")
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "change nothing")
	c.RegisterFlagCompletionFunc("backend", cobra.FixedCompletions([]string{"iptables", "nftables"},
		cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("network", netconf.CompleteNetworks)
	return c
}

func printHandover(a *app.App, report *repair.Report, dry bool) error {
	all := []handedOver{}
	for _, f := range report.Findings {
		all = append(all, handedOver{attached.KeyOf(f.Owner, f.Netns), f.State, f.Repaired, f.Lost,
			f.Differences.Lines(), f.NotOurs})
	}
	if a.JSON() {
		return a.PrintJSON(struct {
			OK          bool         `json:"ok"`
			Attachments []handedOver `json:"attachments"`
			Problems    []string     `json:"problems,omitempty"`
		}{report.OK(), all, report.Problems})
	}
	s := a.Style(a.Stdout)
	for _, f := range all {
		state := s.Doubt(string(f.State))
		switch f.State {
		case repair.Handed, repair.Before, repair.ToHand:
			state = s.Good(string(f.State))
		case repair.Broken:
			state = s.Bad(string(f.State))
		}
		node := &term.Tree{Text: term.Sprintf("%s/%s/%s %s", f.Network, f.ContainerID, f.IfName, state)}
		for _, line := range f.Made {
			node.Add("%s", line)
		}
		for _, line := range f.Failed {
			node.Add("%s", s.Bad(line))
		}
		for _, line := range f.Lost {
			node.Add("%s", s.Doubt("lost: "+line))
		}
		for _, line := range f.NotOurs {
			node.Add("%s", s.Doubt("not made by fairlead: "+line))
		}
		a.Draw(node)
	}
	if len(all) == 0 && len(report.Problems) == 0 {
		a.Print("nothing is attached\n")
	}
	a.NoteAll(report.Problems)
	if dry {
		a.Note("nothing was changed")
	}
	return nil
}
