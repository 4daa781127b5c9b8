// Package app is one run of the command: its streams, the format of the answer, the context that a signal cancels,
// the exit status, and errors with a hint. It contains no command, and knows nothing of networks and attachments.
package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"golang.org/x/sys/unix"
)

// App is one run of the program.
type App struct {
	Version               string
	Stdin, Stdout, Stderr *os.File
	Output                string          // of -o
	Ran                   bool            // the command line was valid
	Exec                  bool            // run each plugin in a process of its own
	Orphans               bool            // include networks that only the cache knows
	Status                int             // exit status if no error is returned
	Doing                 string          // the command that runs, such as fairlead ls
	Ctx                   context.Context // the context of the command
	Still                 func()          // stops the messages about a slow command
	Cancel                context.CancelCauseFunc
	heeding               sync.Once // starts to handle signals; see Interruptible
}

// JSON reports whether the answer is a JSON document.
func (a *App) JSON() bool { return a.Output == "json" }

// Style returns the style of text for f: colours on a terminal, none elsewhere.
func (a *App) Style(f *os.File) term.Style {
	return term.Style{On: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(f)}
}

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Interrupted is the cause of a context that a signal cancelled.
type Interrupted struct{ Signal syscall.Signal }

func (i Interrupted) Error() string { return "interrupted by " + unix.SignalName(i.Signal) }

// Interruptible returns the context for work that has to be rolled back. From its first call on, the first SIGINT,
// SIGTERM or SIGHUP cancels the context. Before it, a signal ends the program at once, because nothing has begun.
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

// Patience is how long the plugins of a network may take for their STATUS.
const Patience = 10 * time.Second

// Print prints on stdout and escapes the arguments.
func (a *App) Print(format string, args ...any) {
	fmt.Fprint(a.Stdout, term.Sprintf(format, args...))
}

// PrintJSON prints the answer as a document.
func (a *App) PrintJSON(doc any) error { return term.PrintJSON(a.Stdout, doc) }

// Draw prints a table or a tree on stdout.
func (a *App) Draw(lines interface{ Print(io.Writer, term.Style) }) {
	lines.Print(a.Stdout, a.Style(a.Stdout))
}

// NoteAll prints lines on stderr that are no errors.
func (a *App) NoteAll(lines []string) {
	for _, line := range lines {
		a.Note("%s", line)
	}
}

// Warn prints warnings on stderr.
func Warn[T any](a *App, warnings []T) {
	for _, w := range warnings {
		a.Note("warning: %v", w)
	}
}

// Note prints a line on stderr that is not an error.
func (a *App) Note(format string, args ...any) {
	fmt.Fprintln(a.Stderr, "fairlead: "+term.Sprintf(format, args...))
}

// Prefixed puts by before text; it returns "" if text is empty.
func Prefixed(by, text string) string {
	if text == "" {
		return ""
	}
	return by + text
}
