package networks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

func rmCommand(a *app.App) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "rm NET", Args: app.Operands("NET"),
		Short: "Remove the file of a network",
		Long: `Remove the file that defines the network NET, so that nothing can be attached to it any more. If containers are attached,
the command lists them and removes nothing. With --force it removes the file all the same: the containers keep their
network, and "fairlead del" and the runtimes detach them with the configuration that they were attached with.

A bridge of the network stays on the host, and the command says so.

Exit status: 0 removed, 1 the file cannot be removed, 2 refused without --force, 4 no such network.`,
		Example: `  fairlead net new office --subnet 10.1.2.0/24
  fairlead net rm office`,
		RunE: func(c *cobra.Command, args []string) error { return remove(a, args[0], force) },

		ValidArgsFunction: netconf.CompleteNetworks,
	}
	c.Flags().BoolVar(&force, "force", false, "remove the file although containers are attached")
	return c
}

func remove(a *app.App, name string, force bool) error {
	n, err := netconf.Find(a, name)
	if err != nil {
		return err
	}
	if n.BuiltIn {
		return app.Usage("network %s is built in: it has no file to remove", name)
	}
	file := filepath.Clean(n.File)
	if force {
		err = os.Remove(file)
	} else {
		err = removeUnused(a, name, file)
	}
	if err != nil {
		return err
	}
	if a.JSON() {
		return a.PrintJSON(struct {
			Network string `json:"network"`
			File    string `json:"file"`
		}{name, file})
	}
	a.Print("removed %s\n", file)
	if kept := n.DropIns(); len(kept) > 0 {
		a.Note("the plugins in its folder stay: %s", strings.Join(kept, ", "))
	}
	if l, err := spec.Load(netconf.ConfDir(), name); err == nil {
		a.Note("warning: another file defines network %s, and is used from now on: %s", name, l.File)
		return nil
	}
	if inUse(name) == nil {
		noteBridge(a, n.List)
	}
	return nil
}

// removeUnused removes the file of a network without attachments. The file has another name, which runtimes ignore,
// while this waits for operations that began with it: an ADD among them keeps the file.
func removeUnused(a *app.App, name, file string) error {
	if err := inUse(name); err != nil {
		return err
	}
	aside := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".removed")
	if err := os.Rename(file, aside); err != nil {
		return err
	}
	release, err := (&attach.Runtime{}).HoldNetwork(a.Interruptible(), name)
	if err == nil {
		defer release()
		err = inUse(name)
	}
	if err == nil {
		return os.Remove(aside)
	}
	if back := os.Link(aside, file); back != nil { // unlike a rename, it replaces no newer file
		return errors.Join(err, fmt.Errorf("the file of network %s is now %s: %w", name, aside, back))
	}
	return errors.Join(err, os.Remove(aside))
}

// inUse fails if attachments of a network exist, or may exist.
func inUse(name string) error {
	s, err := snapshot.Open(name)
	if err != nil {
		return err
	}
	defer s.Close()
	if len(s.All) == 0 {
		return nil
	}
	var who []string
	for _, c := range s.All {
		who = append(who, attached.ShortOwner(c))
	}
	hint := fmt.Sprintf("Detach them first: `fairlead ls %[1]s` lists them, and `fairlead gc %[1]s --gone` removes "+
		"those whose containers are gone. --force removes the file all the same.", name)
	return app.Fail(app.ExitUsage, hint, "network %s is in use, so its file is not removed: %s", name,
		app.Names(who))
}

// noteBridge says that the bridge of a removed network is still on the host, if no other network uses it.
func noteBridge(a *app.App, l *spec.List) {
	w, ok := netconf.WireOf(l)
	if !ok || w.Link == "" {
		return
	}
	for _, other := range netconf.Configured() {
		if used, ok := netconf.WireOf(other); ok && used.Link == w.Link {
			return
		}
	}
	host, err := kernel.Open("")
	if err != nil {
		return
	}
	defer host.Close()
	if link, err := rtnl.LinkByName(host, w.Link); err == nil && link.Kind == "bridge" {
		a.Note("its bridge stays; `ip link delete dev %s` removes it", w.Link)
	}
}
