package calllog

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/spf13/cobra"
)

// logFlags are those of log.
type logFlags struct {
	network, since string
	errors, follow bool
}

// Command is `fairlead log`.
func Command(a *app.App) *cobra.Command {
	var f logFlags
	c := &cobra.Command{
		Use: "log [CONTAINER]", GroupID: "look", Args: app.Operands("[CONTAINER]"),
		Short: "Show the calls of plugins: when, for which container, how long, and with what error",
		Long: `Show the logged calls of plugins, for all containers or for CONTAINER: a pod as NAMESPACE/NAME, podman's name, an
ID or its beginning, or NET/ID. The container may be gone. For each call, the log has the time, verb, plugin, network,
container and interface, the duration, the steps that took more than 1 ms, and the error.

Logging is off by default. The setting is the variable ` + calls.Variable + ` in the environment of the runtime, or the key
"` + calls.Key + `" of ` + calls.Settings + `, for example {"log": "all"}. It is one or more of these words, separated by commas:

  off, errors, all       log no call, the calls that fail, or all calls
  journald, file, PATH   log to the journal, to ` + calls.File + `, or to the file PATH;
                         default: the journal if journald runs, else the file
  20M                    the maximum size of the files together, with K, M or G; default 20M

This command reads the log that the same setting names, and runs journalctl to read the journal. docs/log.md lists all
fields.`,
		Example: `  fairlead log --errors --since 1h
  fairlead log default/web-0
  fairlead log --follow -o json            a document a line`,
		RunE: func(c *cobra.Command, args []string) error { return log(a, strings.Join(args, ""), f) },

		ValidArgsFunction: attached.CompleteContainers,
	}
	c.Flags().StringVar(&f.network, "network", "", "only calls of the network `NET`")
	c.Flags().StringVar(&f.since, "since", "", "only calls since `TIME`: 10m ago, or \"2006-01-02 15:04\"")
	c.Flags().BoolVar(&f.errors, "errors", false, "only calls that failed")
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "print further calls as they happen, until a signal")
	c.RegisterFlagCompletionFunc("network", netconf.CompleteNetworks)
	return c
}

func log(a *app.App, container string, f logFlags) error {
	since, err := sinceTime(f.since)
	if err != nil {
		return err
	}
	wanted := func(l calls.Line) bool {
		return !l.Time.Before(since) && (f.network == "" || l.Network == f.network) && (!f.errors || l.Failed())
	}
	ctx := a.Interruptible()
	log, wrong := OpenCalls(true)
	if wrong != nil {
		a.Note("%v", wrong)
	}
	all, err := log.Read(ctx)
	if err != nil {
		return unreadable(err)
	}
	list, _ := attached.List("")
	is, known := about(container, list, all)
	if f.follow {
		s := a.Style(a.Stdout)
		err := log.follow(ctx, since, func(l calls.Line) {
			if wanted(l) && is(l) {
				printCall(a, l, s)
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		return unreadable(err)
	}
	if !known {
		return app.Fail(app.ExitNotFound, "`fairlead log` lists the calls of all containers.",
			"no call for container %q is logged, and it is not attached", container)
	}
	shown := slices.DeleteFunc(slices.Clone(all), func(l calls.Line) bool { return !wanted(l) || !is(l) })
	if a.JSON() {
		return a.PrintJSON(struct {
			Calls []calls.Line `json:"calls"`
		}{append([]calls.Line{}, shown...)})
	}
	printCalls(a, shown, f.network)
	switch {
	case len(shown) > 0:
	case len(all) > 0:
		a.Print("no logged call matches\n")
	default:
		a.Print("no call is logged\n")
		if log.off {
			a.Note(`to log calls: echo '{"log": "all"}' > ` + calls.Settings + " (fairlead log --help)")
		}
	}
	return nil
}

// printCalls prints calls in their order. Those that only set lo up, as containerd has them made for each pod, are
// counted.
func printCalls(a *app.App, list []calls.Line, network string) {
	s, folded := a.Style(a.Stdout), 0
	for _, l := range list {
		if l.Network == attached.LoopbackNetwork && network == "" && !l.Failed() {
			folded++
			continue
		}
		printCall(a, l, s)
	}
	if folded > 0 {
		a.Note("%d of network %s are not listed; --network %[2]s lists them", folded, attached.LoopbackNetwork)
	}
}

// printCall prints a call: as a document on a line of its own, where that is asked for.
func printCall(a *app.App, l calls.Line, s term.Style) {
	if a.JSON() {
		if doc, err := json.Marshal(l); err == nil {
			a.Stdout.Write(append(term.PrintableJSON(doc), '\n'))
		}
		return
	}
	CallTree(l, s).Print(a.Stdout, s)
}

// CallTree is a call with its error and its steps.
func CallTree(l calls.Line, s term.Style) *term.Tree {
	c := cachedOf(l)
	about := l.Network
	if l.Container != "" {
		about = attached.ShortOwner(c)
	}
	node := &term.Tree{Text: term.Sprintf("%s %s %s %s: %s",
		s.Dim(l.Time.Local().Format("2006-01-02T15:04:05.000Z07:00")), l.Verb, l.Plugin, s.Bold(about), l.Took())}
	if l.Failed() {
		node.Add("%s", s.Bad("code "+strconv.Itoa(l.Code)+": "+l.Error))
	}
	for _, step := range l.Steps {
		node.Add("%s %s", step.Took(), step.Step)
	}
	return node
}
