// Package cli is the fairlead command. It assembles the commands of the folders below it, and contains add, del,
// check, gc, ls, plan, status, version and dns.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/calllog"
	"github.com/fairlead-cni/fairlead/internal/command/cli/cluster"
	"github.com/fairlead-cni/fairlead/internal/command/cli/demo"
	"github.com/fairlead-cni/fairlead/internal/command/cli/dhcp"
	"github.com/fairlead-cni/fairlead/internal/command/cli/doctor"
	"github.com/fairlead-cni/fairlead/internal/command/cli/explain"
	"github.com/fairlead-cni/fairlead/internal/command/cli/graph"
	"github.com/fairlead-cni/fairlead/internal/command/cli/inspect"
	"github.com/fairlead-cni/fairlead/internal/command/cli/install"
	"github.com/fairlead-cni/fairlead/internal/command/cli/ipam"
	"github.com/fairlead-cni/fairlead/internal/command/cli/metrics"
	"github.com/fairlead-cni/fairlead/internal/command/cli/networks"
	"github.com/fairlead-cni/fairlead/internal/command/cli/repair"
	"github.com/fairlead-cni/fairlead/internal/command/cli/run"
	"github.com/fairlead-cni/fairlead/internal/command/cli/scaffold"
	"github.com/fairlead-cni/fairlead/internal/command/cli/support"
	"github.com/fairlead-cni/fairlead/internal/command/cli/trace"
	"github.com/fairlead-cni/fairlead/internal/command/cli/validate"
	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/spf13/cobra"
)

// Main runs the command line args (without the program's name) and returns the exit status. Version is what
// `fairlead version` prints.
func Main(args []string, version string, stdin, stdout, stderr *os.File) int {
	a := &app.App{Version: version, Stdin: stdin, Stdout: stdout, Stderr: stderr}
	a.Ctx, a.Cancel = context.WithCancelCause(context.Background())
	defer a.Cancel(nil)
	root := root(a)
	root.SetArgs(trace.Arrows(args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	a.Still = func() {}
	c, err := root.ExecuteContextC(a.Ctx)
	a.Still()
	a.Doing = c.CommandPath()
	if err != nil {
		var sig app.Interrupted
		switch {
		case !a.Ran && !errors.As(err, new(*app.Failure)):
			err = app.Usage("%w", err) // an error of cobra: no command ran
		case errors.As(context.Cause(a.Ctx), &sig):
			err = sig // the signal explains the error
		}
		return advice.Report(a, err)
	}
	return a.Status
}

// Command returns the command line, for the generators of manual pages and completions.
func Command() *cobra.Command {
	c := root(&app.App{})
	c.InitDefaultHelpCmd()
	c.InitDefaultCompletionCmd()
	return c
}

func root(a *app.App) *cobra.Command {
	root := &cobra.Command{
		Use:   "fairlead",
		Short: "Connect containers to networks, and find out why one has no network",
		Long: `Fairlead connects network namespaces to networks through the Container Network Interface (CNI). It can also run a
command in a network of its own, list attachments, and preview a change before making it.

  fairlead run -p 8080:80 -- COMMAND    run COMMAND on the default network, with port 8080 of the host published
  fairlead add NET NETNS                attach the network namespace NETNS to the network NET
  fairlead ls                           list what is attached
  fairlead inspect CONTAINER            show the networks of a container
  fairlead doctor                       find out why a container has no network, and what corrects it
  fairlead demo                         see it work, in a throw-away host`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       a.Version,
	}
	root.SetVersionTemplate("fairlead {{.Version}}\n" + app.Built(a.Version).Program() + "\n")
	root.SetFlagErrorFunc(app.Misused)
	root.PersistentFlags().StringVarP(&a.Output, "output", "o", "text", "`FORMAT` of the answer: text or json")
	root.PersistentFlags().BoolVar(&a.Exec, "exec", false,
		"run every plugin as a process, even one that this program contains")
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		if a.Output == "table" { // what other tools call it
			a.Output = "text"
		}
		if a.Output != "text" && a.Output != "json" {
			return fmt.Errorf("-o %s: want text or json", a.Output)
		}
		a.Ran, a.Doing, a.Still = true, c.CommandPath(), progress(a, c)
		return nil
	}
	root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"},
		cobra.ShellCompDirectiveNoFileComp))
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run a command on a network:"},
		&cobra.Group{ID: "attach",
			Title: "Attach network namespaces, and operate attachments (environment: fairlead help environment):"},
		&cobra.Group{ID: "look", Title: "Inspect and configure:"})
	root.SetHelpCommandGroupID("look")
	root.SetCompletionCommandGroupID("look")
	root.AddCommand(
		run.Command(a), run.ExecCommand(a), run.GuardCommand(a), run.HostCommand(a), run.HostInsideCommand(),
		demo.Command(a), demo.InsideCommand(a), demo.ServeCommand(a), demo.FetchCommand(a),
		addCommand(a), delCommand(a), checkCommand(a), statusCommand(a), gcCommand(a),
		repair.Command(a), repair.FirewallCommand(a), install.Command(a), install.WarmCommand(a), versionCommand(a),
		lsCommand(a), networks.Command(a), ipam.Command(a), dhcp.Command(a), cluster.Command(a), dnsCommand(a),
		planCommand(a), doctor.Command(a), inspect.Command(a), trace.Command(a), graph.Command(a), support.Command(a),
		calllog.Command(a), metrics.Command(a), validate.Command(a), conformanceCommand(a), explain.Command(a),
		scaffold.Command(a), environmentTopic(), pluginsCommand(a))
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range append(root.Commands(), root) {
		if c.Name() == "help" {
			c.Run, c.RunE = nil, help
		}
		if c.HasSubCommands() {
			group(c)
		}
	}
	return root
}

// group makes a command that only has subcommands print its help, and refuse an unknown subcommand.
func group(c *cobra.Command) {
	c.DisableFlagsInUseLine = true
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		_, name, sub := strings.Cut(c.CommandPath(), " ")
		where := ""
		if sub {
			where = name + ": "
		}
		return app.Fail(app.ExitUsage, "`"+strings.TrimSpace("fairlead help "+name)+"` lists the commands.",
			"%sunknown command %q%s", where, args[0], meant(c, args[0]))
	}
}

// help prints the help of the command that args name.
func help(c *cobra.Command, args []string) error {
	about, rest, err := c.Root().Find(args)
	if err != nil {
		return err
	}
	if about.HasSubCommands() {
		if err := about.Args(about, rest); err != nil {
			return err
		}
	}
	about.InitDefaultHelpFlag()
	return about.Help()
}

// meant returns ", did you mean ...?" with the subcommands of c that resemble word or mean the same, or nothing.
func meant(c *cobra.Command, word string) string {
	same := [][]string{{"ls", "list"}, {"rm", "remove", "del", "delete", "release", "detach"}, {"new", "create", "add"},
		{"show", "get", "inspect"}}
	i := slices.IndexFunc(same, func(words []string) bool { return slices.Contains(words, word) })
	var all, begin []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, sub.Name())
			if strings.HasPrefix(sub.Name(), word) || i >= 0 && slices.Contains(same[i], sub.Name()) {
				begin = append(begin, fmt.Sprintf("%q", sub.Name()))
			}
		}
	}
	if near, ok := spelling.Nearest(word, all); ok && len(begin) == 0 {
		begin = []string{fmt.Sprintf("%q", near)}
	}
	if len(begin) == 0 {
		return ""
	}
	return ", did you mean " + strings.Join(begin, " or ") + "?"
}
