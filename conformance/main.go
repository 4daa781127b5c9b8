package conformance

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// The exit statuses.
const (
	exitPass  = 0
	exitFail  = 1 // a check failed
	exitError = 2 // a check could not be made
)

// words is a flag that may be given several times, with several values each.
type words struct {
	list []string
	sep  string
}

func (w *words) String() string { return strings.Join(w.list, w.sep) }
func (w *words) Set(s string) error {
	w.list = append(w.list, strings.Split(s, w.sep)...)
	return nil
}

// Main runs the command line and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("fairlead-conformance", flag.ContinueOnError)
	flags.SetOutput(stderr)
	s := Settings{}
	plugins, only := words{sep: ","}, words{sep: ","}
	flags.Var(&plugins, "plugin", "")
	flags.Var(&only, "only", "")
	flags.StringVar(&s.Profile, "profile", "", "")
	flags.IntVar(&s.Jobs, "jobs", 0, "")
	flags.DurationVar(&s.Limit, "timeout", time.Minute, "")
	verbose := flags.Bool("v", false, "")
	if err := flags.Parse(args); err != nil {
		return exitError
	}
	s.Plugins, s.Only = append(plugins.list, flags.Args()...), only.list
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	reports, err := Run(ctx, s)
	if err != nil {
		fmt.Fprintln(stderr, "fairlead-conformance:", err)
		return exitError
	}
	People(stdout, reports, *verbose)
	return exitStatus(reports)
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
