package cli

import (
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

func versionCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "version [NET [NETNS]]", GroupID: "attach", Args: app.Operands("[NET] [NETNS]"),
		Short: "Print fairlead's version, or the CNI versions of a network's plugins",
		Long: `Print fairlead's version and the CNI versions that it supports. With a network NET, print the versions that its
plugins support and the one that is used. NETNS is accepted for compatibility with cnitool and has no effect.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := attached.NoteAbsent(a, args); err != nil {
				return err
			}
			if len(args) == 0 {
				b := app.Built(a.Version)
				if a.JSON() {
					return a.PrintJSON(b)
				}
				a.Print("fairlead %s, CNI %s\n%s\n", b.Version, netconf.Join(spec.Versions()), b.Program())
				return nil
			}
			n, rt, err := target.FindRuntime(a, netconf.FindOrFile, args[0])
			if err != nil {
				return err
			}
			plugins, version, err := netconf.Versions(a.Interruptible(), n, rt)
			if plugins == nil {
				return err
			}
			doc := struct {
				Network string           `json:"network"`
				Version spec.Version     `json:"version"` // that the network uses
				Plugins []netconf.Spoken `json:"plugins"`
			}{n.Name, version, plugins}
			switch {
			case err != nil && a.JSON():
				return err
			case err != nil: // the table shows which plugin it is
				err = app.Fail(app.ExitFailure,
					"Change cniVersion in the network's configuration, or use newer plugins: set CNI_PATH to their "+
						"directory, or install them in "+netconf.AdminDir+".",
					"%w", netconf.UnspokenBy(n.List, doc.Plugins, err))
			case a.JSON():
				return a.PrintJSON(doc)
			default:
				a.Print("%s runs in %s\n", doc.Network, doc.Version)
			}
			t := term.Table{{"PLUGIN", "SPEAKS", "FILE"}}
			for _, p := range doc.Plugins {
				t = append(t, []any{p.Type, netconf.Join(p.Versions), p.Path})
			}
			a.Draw(t)
			return err
		},
		ValidArgsFunction: target.CompleteTarget,
	}
}
