package cli

import (
	"errors"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/spf13/cobra"
)

func planCommand(a *app.App) *cobra.Command {
	var f target.Flags
	c := &cobra.Command{
		Use: "plan NET [NETNS]", GroupID: "look", Args: app.Operands("NET [NETNS]"),
		Short: "Print what add would make, without making it",
		Long: `Print what attaching a network namespace to NET would make, in order. Nothing is changed. NET is the name of a
network, or the path of a file that defines one. Addresses are examples, because no address is allocated. The plan of a
plugin of another project is unknown. Missing plugins are named after the plans of the others.

What this host lacks now, such as a master, and ports that are in use (CAP_ARGS) are warnings only: the add may be on
another host. NETNS need not exist: names and MAC addresses are those that an add of it would make.

Exit status: 0 done, 1 a plugin is missing or refuses its configuration, 4 no such network.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := attached.NoteAbsent(a, args); err != nil {
				return err
			}
			if len(args) == 1 {
				args = append(args, target.ExampleAttachment().Netns)
			}
			t, err := target.New(a, f, args)
			if err != nil {
				return err
			}
			missing := errors.Join(t.Missing()...)
			steps, err := t.Plan()
			if err != nil {
				return errors.Join(missing, err)
			}
			for _, note := range t.Notes {
				a.Note("warning: %s: %s", note.Plugin, note.Text)
			}
			app.Warn(a, append(t.Undeclared(), t.Lacks()...))
			if a.JSON() {
				return errors.Join(missing, a.PrintJSON(struct {
					attached.Key
					Plugins []target.Step `json:"plugins"`
				}{t.Document(), steps}))
			}
			s := a.Style(a.Stdout)
			t.Tree(s, steps).Print(a.Stdout, s)
			return missing
		},
		ValidArgsFunction: target.CompleteTarget,
	}
	f.Register(c)
	return c
}
