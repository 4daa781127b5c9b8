package conformance

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// The exit statuses.
const (
	exitPass  = 0
	exitFail  = 1 // a check failed
	exitError = 2 // a check could not be made
)

// usage is the help.
const usage = `fairlead-conformance tests CNI plugins and runtimes of any vendor against the CNI specification.

  fairlead-conformance --plugin /opt/cni/bin/bridge               test a plugin
  fairlead-conformance --plugin ./mine --profile mine.json        test a plugin with a configuration of your own
  fairlead-conformance --runtime ./myruntime                      test a runtime
  fairlead-conformance --list                                     list the checks, with their clauses

Each check runs in a throw-away host: network, process and mount namespaces of its own, with empty state
directories. So the machine does not change. It takes root, or user namespaces. docs/conformance.md describes profiles and results.

  --plugin PATH,…    test these plugins; the flag may be repeated
  --profile FILE     JSON that says how plugins are configured that the suite does not know
  --runtime CMD      test a runtime: CMD add|check|del|gc|status NETWORK NETNS, as of cnitool
  --only ID,…        make these checks only, by clause (P12) or by name (P12/twice)
  -o, --output FORMAT  text (default), json, junit or tap
  -v, --verbose      also print what passed and what does not apply
  --jobs N           make N checks at a time (default: four for each processor)
  --timeout TIME     how long one call may take (default 1m0s)
  --list             list the checks

Exit status: 0 all checks passed, 1 a check failed, 2 a check could not be made.
`

// A line is a command line.
type line struct {
	Settings
	output        string
	list, verbose bool
}

func parse(args []string) (l line, err error) {
	flags := flag.NewFlagSet("fairlead-conformance", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	for name, list := range map[string]*[]string{"plugin": &l.Plugins, "only": &l.Only} {
		flags.Func(name, "", func(values string) error {
			*list = append(*list, strings.Split(values, ",")...)
			return nil
		})
	}
	flags.StringVar(&l.Runtime, "runtime", "", "")
	flags.StringVar(&l.Profile, "profile", "", "")
	flags.IntVar(&l.Jobs, "jobs", 0, "")
	flags.DurationVar(&l.Limit, "timeout", time.Minute, "")
	for _, name := range []string{"o", "output"} {
		flags.StringVar(&l.output, name, "text", "")
	}
	for _, name := range []string{"v", "verbose"} {
		flags.BoolVar(&l.verbose, name, false, "")
	}
	flags.BoolVar(&l.list, "list", false, "")
	if err := flags.Parse(args); err != nil {
		return l, err
	}
	l.Plugins = append(l.Plugins, flags.Args()...)
	return l, l.check()
}

// check is the complaint about values that cannot be.
func (l line) check() error {
	if formats()[l.output] == nil {
		return fmt.Errorf("--output %s: want one of %v", l.output, slices.Sorted(maps.Keys(formats())))
	}
	if l.Jobs < 0 {
		return fmt.Errorf("--jobs %d: want 0 or more", l.Jobs)
	}
	if l.Limit <= 0 {
		return fmt.Errorf("--timeout %v: want more than 0", l.Limit)
	}
	for _, id := range l.Only {
		if !isCheck(id) {
			return fmt.Errorf("--only %s: there is no such clause or check; --list has them", id)
		}
	}
	if len(l.Plugins) == 0 && l.Runtime == "" && !l.list {
		return errors.New("say what to test: --plugin PATH or --runtime CMD")
	}
	return nil
}

// Main runs the command line and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	l, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		io.WriteString(stdout, usage)
		return exitPass
	case err != nil:
		fmt.Fprintf(stderr, "fairlead-conformance: %v\n`fairlead-conformance --help` has all flags.\n", err)
		return exitError
	case l.list:
		if err := list(stdout, l.Only); err != nil {
			fmt.Fprintln(stderr, "fairlead-conformance:", err)
			return exitError
		}
		return exitPass
	}
	if f, ok := stderr.(*os.File); ok && isTerminal(f) {
		l.Progress = func(made, of int) { fmt.Fprintf(f, "\r%d of %d checks", made, of) }
	}
	reports, err := Run(l.Settings)
	if l.Progress != nil {
		io.WriteString(stderr, "\r\x1b[K") // clears the line
	}
	if err == nil {
		err = formats()[l.output](stdout, reports, l.verbose)
	}
	if err != nil {
		fmt.Fprintln(stderr, "fairlead-conformance:", visible(err.Error()))
		return exitError
	}
	return exitStatus(reports)
}

// isTerminal reports whether f is a terminal, or a device that throws away what is written.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// exitStatus is that for reports.
func exitStatus(reports []Report) int {
	status := exitPass
	for _, r := range reports {
		if r.count(Fail) > 0 {
			status = max(status, exitFail)
		}
		if r.count(Error) > 0 {
			status = exitError
		}
	}
	return status
}
