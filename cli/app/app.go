// Package app is one run of the command as its rooms see it: the streams, the format of the answer, the context that
// a signal ends, the exit status and failures with a way out. No command lives here, and nothing that knows networks
// or attachments.
package app

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/cli/term"
	"golang.org/x/sys/unix"
)

// An App is one run of the program.
type App struct {
	Version               string
	Stdin, Stdout, Stderr *os.File
	Output                string          // of -o
	Ran                   bool            // the command line was understood
	Exec                  bool            // each plugin in a process of its own
	Orphans               bool            // a network counts that only its attachments remember
	Status                int             // exit status where there is no error
	Doing                 string          // the command that ran, as it is called
	Ctx                   context.Context // of the command that runs
	Still                 func()          // ends what is told of a command that takes long
	Cancel                context.CancelCauseFunc
	heeding               sync.Once // a signal ends ctx, and no longer the program
}

// JSON reports whether the answer is to be a document.
func (a *App) JSON() bool { return a.Output == "json" }

// Style is for what is printed to f.
func (a *App) Style(f *os.File) term.Style {
	return term.Style{On: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(f)}
}

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Interrupted is why a context ended: a signal asked this program to.
type Interrupted struct{ Signal syscall.Signal }

func (i Interrupted) Error() string { return "interrupted by " + unix.SignalName(i.Signal) }

// Interruptible is the context of what begins now: from here on the first signal to end cancels it, so that what was
// begun is taken back. Before, there is nothing to take back, and a signal ends the program whatever it waits for.
func (a *App) Interruptible() context.Context {
	a.heeding.Do(func() {
		sigs := make(chan os.Signal, 1)
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
			if !signal.Ignored(s) {
				signal.Notify(sigs, s)
			}
		}
		go func() { a.Cancel(Interrupted{(<-sigs).(syscall.Signal)}) }()
	})
	return a.Ctx
}

// Patience is how long the plugins of a network have for their STATUS.
const Patience = 10 * time.Second

// Print prints on stdout, with what the arguments say escaped.
func (a *App) Print(format string, args ...any) {
	fmt.Fprint(a.Stdout, term.Sprintf(format, args...))
}

// Note says something on stderr that is no failure.
func (a *App) Note(format string, args ...any) {
	fmt.Fprintln(a.Stderr, "fairlead: "+term.Sprintf(format, args...))
}

// Prefixed is text behind by; empty where text is.
func Prefixed(by, text string) string {
	if text == "" {
		return ""
	}
	return by + text
}
