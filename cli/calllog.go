package cli

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/calls"
	"github.com/spf13/cobra"
)

// logFlags are those of log.
type logFlags struct {
	network, since string
	errors, follow bool
}

func (a *app) logCommand() *cobra.Command {
	var f logFlags
	c := &cobra.Command{
		Use: "log [CONTAINER]", GroupID: "look", Args: operands("[CONTAINER]"),
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
		RunE: func(c *cobra.Command, args []string) error { return a.log(strings.Join(args, ""), f) },

		ValidArgsFunction: completeContainers,
	}
	c.Flags().StringVar(&f.network, "network", "", "only calls of the network `NET`")
	c.Flags().StringVar(&f.since, "since", "", "only calls since `TIME`: 10m ago, or \"2006-01-02 15:04\"")
	c.Flags().BoolVar(&f.errors, "errors", false, "only calls that failed")
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "print further calls as they happen, until a signal")
	c.RegisterFlagCompletionFunc("network", completeNetworks)
	return c
}

// explainedSettings are what the settings of a node say, whatever name they are asked for by.
func explainedSettings() []explained {
	const value = "words with commas between them"
	keys := []ReferenceKey{{Path: calls.Key, Value: value, Doc: "Which calls are logged, and where. off logs no call (the " +
		"default), errors the calls that fail, all every call. journald logs to the journal, file to " + calls.File + ", and a " +
		"path to that file; by default calls go to the journal if journald runs, else to the file. A size such as 64M is the " +
		"maximum of the file and its predecessor together; default 20M. Example: \"errors,file,64M\"."}}
	return []explained{
		{Name: calls.Settings, Text: "the settings of Fairlead's plugins on this node, a JSON object", More: "The file " +
			"may be absent. A change takes effect with the next call. docs/log.md has more on the log.", Keys: keys},
		{Name: calls.Variable, Value: value, Text: "the key " + calls.Key + " of " + calls.Settings + ", as a variable in the " +
			"environment of the runtime, which the plugins inherit. The variable takes precedence over the file."},
	}
}

func (a *app) log(container string, f logFlags) error {
	since, err := sinceTime(f.since)
	if err != nil {
		return err
	}
	wanted := func(l calls.Line) bool {
		return !l.Time.Before(since) && (f.network == "" || l.Network == f.network) && (!f.errors || l.Failed())
	}
	ctx := a.interruptible()
	log, wrong := openCalls(true)
	if wrong != nil {
		a.note("%v", wrong)
	}
	all, err := log.read(ctx)
	if err != nil {
		return unreadable(err)
	}
	attached, _ := (&attach.Runtime{}).List("")
	is, known := about(container, attached, all)
	if f.follow {
		s := a.style(a.stdout)
		err := log.follow(ctx, since, func(l calls.Line) {
			if wanted(l) && is(l) {
				a.printCall(l, s)
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		return unreadable(err)
	}
	if !known {
		return fail(exitNotFound, "`fairlead log` lists the calls of all containers.",
			"no call for container %q is logged, and it is not attached", container)
	}
	shown := slices.DeleteFunc(slices.Clone(all), func(l calls.Line) bool { return !wanted(l) || !is(l) })
	if a.json() {
		return printJSON(a.stdout, struct {
			Calls []calls.Line `json:"calls"`
		}{append([]calls.Line{}, shown...)})
	}
	a.printCalls(shown, f.network)
	switch {
	case len(shown) > 0:
	case len(all) > 0:
		a.print("no logged call matches\n")
	default:
		a.print("no call is logged\n")
		if log.off {
			a.note(`to log calls: echo '{"log": "all"}' > ` + calls.Settings + " (fairlead log --help)")
		}
	}
	return nil
}

// printCalls prints calls in their order. Those that only set lo up, as containerd has them made for each pod, are counted.
func (a *app) printCalls(list []calls.Line, network string) {
	s, folded := a.style(a.stdout), 0
	for _, l := range list {
		if l.Network == loopbackNetwork && network == "" && !l.Failed() {
			folded++
			continue
		}
		a.printCall(l, s)
	}
	if folded > 0 {
		a.note("%d of network %s are not listed; --network %[2]s lists them", folded, loopbackNetwork)
	}
}

// printCall prints a call: as a document on a line of its own, where that is asked for.
func (a *app) printCall(l calls.Line, s style) {
	if a.json() {
		if doc, err := json.Marshal(l); err == nil {
			a.stdout.Write(append(printableJSON(doc), '\n'))
		}
		return
	}
	callTree(l, s).print(a.stdout, s)
}

// callTree is a call with its error and its steps.
func callTree(l calls.Line, s style) *tree {
	c := cachedOf(l)
	about := l.Network
	if l.Container != "" {
		about = shortOwner(c)
	}
	node := &tree{text: sprintf("%s %s %s %s: %s", s.dim(l.Time.Local().Format("2006-01-02T15:04:05.000Z07:00")), l.Verb,
		l.Plugin, s.bold(about), l.Took())}
	if l.Failed() {
		node.add("%s", s.bad("code "+strconv.Itoa(l.Code)+": "+l.Error))
	}
	for _, step := range l.Steps {
		node.add("%s %s", step.Took(), step.Step)
	}
	return node
}
