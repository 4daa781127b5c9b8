package networks

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

func chainCommand(a *app.App) *cobra.Command {
	var undo, write bool
	c := &cobra.Command{
		Use: "chain FILE", Args: app.Operands("FILE"),
		Short: "Rewrite a list so that its plugins run in one process, or back",
		Long: `Print the network configuration list FILE with all of its plugins in one plugin, chain, which runs them in one process.
What the list attaches stays the same, so running containers are not affected. FILE may also be the name of a network.

The keys of the list itself stay. Plugins from a folder beside FILE are included.

  fairlead net chain 10-lan.conflist                     print the list with a chain
  fairlead net chain --write 10-lan.conflist             replace the file
  fairlead net chain --undo --write 10-lan.conflist      write the plugins out again`,
		RunE: func(c *cobra.Command, args []string) error {
			n, err := netconf.FindOrFile(a, args[0])
			if err != nil {
				return err
			}
			rewrite := n.Chain
			if undo {
				rewrite = n.WriteOut
			}
			doc, folded, err := rewrite()
			if err != nil {
				return fmt.Errorf("rewrite %s: %w", args[0], err)
			}
			doc = append(doc, '\n')
			put := func(doc []byte) error { return replace(n, doc) }
			if !write {
				put = func(doc []byte) error { _, err := a.Stdout.Write(doc); return err }
			}
			if err := put(doc); err != nil {
				return err
			}
			noteChain(a, n, folded, undo)
			return nil
		},
		ValidArgsFunction: target.CompleteTarget,
	}
	c.Flags().BoolVar(&undo, "undo", false, "rewrite a chain into a list of its plugins")
	c.Flags().BoolVarP(&write, "write", "w", false, "replace FILE instead of printing")
	return c
}

// noteChain prints notes about unexpected parts of a rewritten list.
func noteChain(a *app.App, n *netconf.Network, folded, undo bool) {
	if folded {
		a.Note("the plugins of %s are now in the list, and \"loadOnlyInlinedPlugins\" makes runtimes ignore that "+
			"folder",
			filepath.Join(filepath.Dir(n.File), n.Name))
	}
	if ext := filepath.Ext(n.File); n.File != "" && ext != ".conflist" {
		a.Note("it is a list now: its file must be named *.conflist, not *%s", ext)
	}
	if undo {
		return
	}
	for _, p := range n.WrittenOut().Plugins {
		if netconf.OfType(p.Type) == nil {
			a.Note("%s is not a plugin of fairlead: the chain executes it in its place", p.Type)
		}
	}
}

// replace rewrites n's file in one step.
func replace(n *netconf.Network, doc []byte) error {
	switch ext := filepath.Ext(n.File); {
	case n.File == "":
		return app.Usage("no file defines network %s; without --write the list is printed", n.Name)
	case ext != ".conflist":
		return app.Usage("%s: a list cannot be in a file named *%s; without --write the list is printed", n.File, ext)
	}
	if _, err := spec.ParseList(doc); err != nil {
		return fmt.Errorf("rewrite %s: %w", n.File, err)
	}
	st, err := os.Stat(n.File)
	if err != nil {
		return err
	}
	file, err := filepath.EvalSymlinks(n.File)
	if err != nil {
		return err
	}
	return app.ReplaceFile(file, doc, st.Mode().Perm())
}
