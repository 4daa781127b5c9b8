// Package cli is the fairlead command: it runs a command on a network, attaches and detaches network
// namespaces, and says what is attached and what would be done.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Main runs the command line args (without the program's name) and returns the exit status. Version is
// what `fairlead version` answers.
func Main(args []string, version string, stdin, stdout, stderr *os.File) int {
	a := &app{version: version, stdin: stdin, stdout: stdout, stderr: stderr}
	a.ctx, a.cancel = context.WithCancelCause(context.Background())
	defer a.cancel(nil)
	root := a.root()
	root.SetArgs(arrows(args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	a.still = func() {}
	c, err := root.ExecuteContextC(a.ctx)
	a.still()
	a.doing = c.CommandPath()
	if err != nil {
		var sig interrupted
		switch {
		case !a.ran && !errors.As(err, new(*failure)):
			err = usage("%w", err) // cobra's own: it ran nothing
		case errors.As(context.Cause(a.ctx), &sig):
			err = sig // whatever else came of it
		}
		return a.report(err)
	}
	return a.status
}

// An app is one run of the program.
type app struct {
	version               string
	stdin, stdout, stderr *os.File
	output                string          // of -o
	ran                   bool            // the command line was understood
	exec                  bool            // each plugin in a process of its own
	orphans               bool            // a network counts that only its attachments remember
	status                int             // exit status where there is no error
	doing                 string          // the command that ran, as it is called
	ctx                   context.Context // of the command that runs
	still                 func()          // ends what is told of a command that takes long
	cancel                context.CancelCauseFunc
	heeding               sync.Once // a signal ends ctx, and no longer the program
}

// Command is the command line, for who writes its manual pages.
func Command() *cobra.Command {
	c := (&app{}).root()
	c.InitDefaultHelpCmd()
	c.InitDefaultCompletionCmd()
	return c
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "fairlead",
		Short: "Container networking: a command on a network, and what is attached where",
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
		Version:       a.version,
	}
	root.SetVersionTemplate("fairlead {{.Version}}\n" + built(a.version).program() + "\n")
	root.SetFlagErrorFunc(misused)
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "text", "`FORMAT` of the answer: text or json")
	root.PersistentFlags().BoolVar(&a.exec, "exec", false,
		"run every plugin as a process, even a plugin that is this program")
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		if a.output == "table" { // other tools' word for it
			a.output = "text"
		}
		if a.output != "text" && a.output != "json" {
			return fmt.Errorf("-o %s: want text or json", a.output)
		}
		a.ran, a.doing, a.still = true, c.CommandPath(), a.progress(c)
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
		a.runCommand(), a.guardCommand(), a.hostCommand(), a.hostInsideCommand(),
		a.demoCommand(), a.demoInsideCommand(), a.serveCommand(), a.fetchCommand(),
		a.addCommand(), a.delCommand(), a.checkCommand(), a.statusCommand(), a.gcCommand(),
		a.repairCommand(), a.firewallCommand(), a.installCommand(), a.warmCommand(),
		a.versionCommand(),
		a.lsCommand(), a.netCommand(), a.ipamCommand(), a.dhcpCommand(), a.dnsCommand(), a.planCommand(),
		a.doctorCommand(), a.inspectCommand(), a.traceCommand(), a.graphCommand(), a.bundleCommand(), a.logCommand(),
		a.metricsCommand(), a.validateCommand(), a.explainCommand(), a.environmentTopic(), a.pluginsCommand(), a.newGroup())
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

// group makes a command of commands refuse one that it does not have, and say what it is about where none is named.
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
		return fail(exitUsage, "`"+strings.TrimSpace("fairlead help "+name)+"` lists the commands.",
			"%sunknown command %q%s", where, args[0], meant(c, args[0]))
	}
}

// help says what a command is about; the arguments are its name.
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

// meant are the commands of c that word may have been meant for.
func meant(c *cobra.Command, word string) string {
	var all, begin []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, sub.Name())
			if strings.HasPrefix(sub.Name(), word) {
				begin = append(begin, fmt.Sprintf("%q", sub.Name()))
			}
		}
	}
	if near, ok := spec.Nearest(word, all); ok && len(begin) == 0 {
		begin = []string{fmt.Sprintf("%q", near)}
	}
	if len(begin) == 0 {
		return ""
	}
	return ", did you mean " + strings.Join(begin, " or ") + "?"
}

// json reports whether the answer is to be a document.
func (a *app) json() bool { return a.output == "json" }

// style is for what is printed to f.
func (a *app) style(f *os.File) style {
	return style{on: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(f)}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// interrupted is why a context ended: a signal asked this program to.
type interrupted struct{ sig syscall.Signal }

func (i interrupted) Error() string { return "interrupted by " + unix.SignalName(i.sig) }

// interruptible is the context of what begins now: from here on the first signal to end cancels it, so that what was
// begun is taken back. Before, there is nothing to take back, and a signal ends the program whatever it waits for.
func (a *app) interruptible() context.Context {
	a.heeding.Do(func() {
		sigs := make(chan os.Signal, 1)
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
			if !signal.Ignored(s) {
				signal.Notify(sigs, s)
			}
		}
		go func() { a.cancel(interrupted{(<-sigs).(syscall.Signal)}) }()
	})
	return a.ctx
}

// operands is for cobra's Args: it says what is missing by its name. Optional ones are in brackets.
func operands(names string) cobra.PositionalArgs {
	want := strings.Fields(names)
	return func(c *cobra.Command, args []string) error {
		for i, name := range want {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return misused(c, fmt.Errorf("%s is missing", name))
			}
		}
		if len(args) > len(want) {
			return misused(c, fmt.Errorf("%q is one argument too many", args[len(want)]))
		}
		return nil
	}
}

// misused is an error in how c was called.
func misused(c *cobra.Command, err error) error {
	_, name, _ := strings.Cut(c.CommandPath(), " ")
	if name != "" {
		name += ": "
	}
	if said, _, number := strings.Cut(err.Error(), ": strconv.Parse"); number {
		err = fmt.Errorf("%s: want a number", said)
	}
	return fail(exitUsage, "Usage: "+c.UseLine(), "%s%w", name, err)
}
