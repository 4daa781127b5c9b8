// Package install is fairlead install and fairlead warm: it installs plugins and a network's file, and loads
// programs into memory. The top-level package install replaces and restores files.
package install

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/install"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/spf13/cobra"
)

// installation holds the flags of `fairlead install`.
type installation struct {
	dir, from, conf            string
	check, rollback, uninstall bool
	keepReference              bool
}

// Command is `fairlead install`.
func Command(a *app.App) *cobra.Command {
	var i installation
	c := &cobra.Command{
		Use: "install", GroupID: "attach", Args: app.Operands(""),
		Short: "Install the plugins where container runtimes search for them",
		Long: `Install Fairlead's plugins in the directory that container runtimes search, /opt/cni/bin. Attached containers
stay attached, and a runtime may call a plugin at any time: each file is replaced by a single rename.

Plugins of the reference with the same names are replaced and kept for --uninstall. Any other program that has the
name of a plugin is not touched; the command names each such file. Files that are up to date are not written again.

The command takes the plugins from the directory cni beside it, from lib/fairlead/cni beside its directory, or from its
own directory. If none of these has them, as after "go install", it installs itself as each plugin. It refuses a DIR to which other users can write, because runtimes execute its files as root.

With --conf, the command also writes a network's configuration to the directory that runtimes search, $NETCONFPATH or
/etc/cni/net.d, after the plugins. A file of that name that this command did not write, or that was changed since, is
kept, and the command says so. With --uninstall it removes that file first, unless the file was changed.`,
		Example: `  fairlead install
  fairlead install --check && echo up to date
  fairlead install --dir /usr/libexec/cni
  fairlead install --rollback               restore what the last install replaced`,
		RunE: func(*cobra.Command, []string) error {
			if i.check && i.rollback || i.check && i.uninstall || i.rollback && i.uninstall {
				return app.Usage("install: --check, --rollback and --uninstall exclude each other")
			}
			if i.conf != "" && i.rollback {
				return app.Usage("install: --conf cannot be combined with --rollback, which does not restore " +
					"configurations")
			}
			return run(a, i)
		},
	}
	c.Flags().StringVar(&i.dir, "dir", netconf.AdminDir, "install in `DIR`")
	c.Flags().StringVar(&i.from, "from", "", "take the plugins from the directory `FROM`")
	c.Flags().BoolVar(&i.check, "check", false,
		"change nothing; exit status 3 if an install would change something")
	c.Flags().BoolVar(&i.rollback, "rollback", false,
		"restore what the last install replaced, and remove what it added")
	c.Flags().BoolVar(&i.uninstall, "uninstall", false,
		"remove Fairlead's plugins, and restore the reference's that they replaced")
	c.Flags().StringVar(&i.conf, "conf", "",
		"also write the network configuration `FILE` to the directory that runtimes search")
	c.Flags().BoolVar(&i.keepReference, "keep-reference", false, "do not replace the reference's plugins")
	for _, dir := range []string{"dir", "from"} {
		_ = c.MarkFlagDirname(dir)
	}
	return c
}

// run installs, checks, rolls back or uninstalls, and prints the changes.
func run(a *app.App, i installation) (err error) {
	c := &install.Change{Dir: i.dir}
	var n *install.NetFile
	if i.conf != "" {
		if n, err = readNetFile(i.conf); err != nil {
			return err
		}
		if i.uninstall { // first, so that no runtime calls plugins that are removed
			if err := removeNetFile(a, n); err != nil {
				return uninstallable(err)
			}
		}
	}
	switch {
	case i.rollback:
		c.Entries, err = install.Rollback(i.dir)
	case i.uninstall:
		c.Entries, err = install.Uninstall(i.dir)
	default:
		c, err = i.fresh()
	}
	if err != nil {
		return uninstallable(err)
	}
	switch {
	case !c.Changes():
	case i.check:
		a.Status = app.ExitFault
	default:
		warmFirst(c)
	}
	if n != nil && !i.uninstall {
		if err := writeNetFile(a, n, i.check); err != nil {
			return uninstallable(err)
		}
	}
	if a.JSON() {
		return a.PrintJSON(c)
	}
	printInstall(a, c, i.check)
	return nil
}

// fresh installs, or with --check only compares.
func (i installation) fresh() (*install.Change, error) {
	from, err := i.source()
	if err != nil {
		return nil, err
	}
	if i.check {
		return install.Plan(from, i.dir, i.keepReference)
	}
	return install.Install(from, i.dir, i.keepReference)
}

// source finds the plugins. If this program came without them, as `go install` makes it, it is itself each of them.
func (i installation) source() (s install.Source, err error) {
	if i.from != "" {
		return install.Directory(i.from)
	}
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	dir, err := install.Find(self)
	switch {
	case err != nil:
		return s, err
	case dir != "":
		return install.Directory(dir)
	}
	var names []string
	for _, p := range plugin.All() {
		names = append(names, p.Name)
	}
	return install.Single(self, names)
}

// warmFirst loads the installed program into memory in huge pages, so that it starts faster. It ignores errors: the
// installation succeeded.
func warmFirst(c *install.Change) {
	for _, e := range c.Entries {
		if e.State != install.Kept && e.State != install.Removed {
			_, _ = warm(filepath.Join(c.Dir, e.Name))
			return // the others are the same file
		}
	}
}

// printInstall prints a line for each change, made or needed.
func printInstall(a *app.App, c *install.Change, check bool) {
	names := map[install.State][]string{}
	for _, e := range c.Entries {
		names[e.State] = append(names[e.State], e.Name)
	}
	if len(c.Entries) == 0 {
		a.Print("%s: no plugin of Fairlead is installed here\n", c.Dir)
		return
	}
	a.Print("%s:\n", c.Dir)
	would := ""
	if check {
		would = "would be "
	}
	for _, s := range []struct {
		state install.State
		text  string
	}{
		{install.Added, would + "added"},
		{install.Updated, would + "updated"},
		{install.Replaced, would + "replaced, the reference's are kept for --uninstall"},
		{install.Restored, "restored"},
		{install.Removed, would + "removed"},
		{install.Same, "up to date"},
		{install.Kept, "not touched, because they are programs of others"},
	} {
		if len(names[s.state]) > 0 {
			a.Print("  %s: %s\n", s.text, strings.Join(names[s.state], " "))
		}
	}
}

// uninstallable adds a hint to the error of a directory that cannot be changed.
func uninstallable(err error) error {
	const elsewhere = "or give another directory with --dir, and configure it in the runtime (containerd: bin_dir, " +
		"CRI-O: plugin_dirs, podman: cni_plugin_dirs)."
	var path *fs.PathError
	var link *os.LinkError
	where := "The directory"
	switch {
	case errors.As(err, &path):
		where = path.Path
	case errors.As(err, &link):
		where = link.New
	}
	var unsafe *install.UnsafeError
	switch {
	case errors.As(err, &unsafe):
		return app.Fail(app.ExitFailure,
			"Runtimes execute plugins as root. Let only root own and write it (chown root, chmod go-w), "+
				elsewhere,
			"%w", err)
	case errors.Is(err, install.ErrNothingKept):
		return app.Fail(app.ExitFailure, "`fairlead install --uninstall` removes Fairlead's plugins.", "%w", err)
	case errors.Is(err, fs.ErrNotExist):
		return app.Fail(app.ExitFailure, "Nothing is installed there; --dir names another directory.", "%w", err)
	case errors.Is(err, syscall.EROFS):
		return app.Fail(app.ExitFailure,
			where+" is on a read-only file system: mount it writable (mount -o remount,rw), "+
				elsewhere, "%w", err)
	case errors.Is(err, syscall.EWOULDBLOCK):
		return app.Fail(app.ExitTryAgain, "Another install is running there: try again in a moment.", "%w", err)
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0:
		return app.Fail(app.ExitFailure,
			where+" cannot be written even by root: look for a container without the capability DAC_OVERRIDE, for "+
				"chattr +i (lsattr), and for "+
				"SELinux or AppArmor (dmesg); "+elsewhere, "%w", err)
	case errors.Is(err, fs.ErrPermission):
		return app.Fail(app.ExitFailure, "Only root may write there: use sudo, "+elsewhere, "%w", err)
	}
	return err
}
