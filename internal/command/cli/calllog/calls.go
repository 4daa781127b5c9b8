// Package calllog reads the lines that calls of plugins left in the journal or in a file, and prints them: fairlead
// log. Who writes the lines is package sdk, and their form is package calls.
package calllog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// A CallLog is where the calls of plugins are written down: in a file, in the journal, or in both, where journald was
// not there at all times.
type CallLog struct {
	File    string // empty: none
	Journal string // the path of journalctl; empty: the journal is not asked
	off     bool   // by the setting of this environment; a runtime may have another one
}

const journalHint = "calls may be in the journal, which journalctl reads, and that is not installed here; where it " +
	"is: journalctl -t " + calls.Identifier

// OpenCalls finds the log by the setting. Where that is off, journalctl is run for who asks for the log itself alone: a
// runtime may have another setting. The error says what is wrong with that, or missing, and the log is what is left.
func OpenCalls(asked bool) (l CallLog, wrong error) {
	s, wrong := calls.Read(os.Environ())
	l.off = !s.On
	if s.To != calls.ToJournal {
		l.File = s.Path()
	}
	_, err := os.Stat(calls.Socket)
	if (s.On || asked) && (s.To == calls.ToJournal || s.To == "" && err == nil) {
		if l.Journal, err = exec.LookPath("journalctl"); err != nil && s.On {
			wrong = errors.New(journalHint)
		}
	}
	return l, wrong
}

// Read is every line that there is, in the order of their beginning. Of the journal, those that match: FIELD=VALUE.
func (l CallLog) Read(ctx context.Context, match ...string) (all []calls.Line, err error) {
	var errs []error
	keep := func(line calls.Line) { all = append(all, line) }
	if l.File != "" {
		_, err := calls.Since(l.File, calls.Position{}, keep)
		errs = append(errs, err)
	}
	if l.Journal != "" {
		errs = append(errs, l.Ask(ctx, match, func(line calls.Line, _ string) { keep(line) }))
	}
	slices.SortStableFunc(all, func(a, b calls.Line) int { return a.Time.Compare(b.Time) })
	return all, errors.Join(errs...)
}

// Ask runs journalctl, and has each line told, with its place in the journal. Who is root reads what root wrote:
// any program may send entries.
func (l CallLog) Ask(ctx context.Context, args []string, each func(calls.Line, string)) error {
	args = append([]string{"--output=json", "--all", "--quiet", "--no-pager", "--identifier=" + calls.Identifier},
		args...)
	if os.Geteuid() == 0 {
		args = append(args, "_UID=0")
	}
	cmd := exec.CommandContext(ctx, l.Journal, args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	const longest = 1 << 20 // an entry has fields of journald's, too
	in := bufio.NewScanner(out)
	in.Buffer(nil, longest)
	for in.Scan() {
		if line, cursor, ok := calls.FromJournal(in.Bytes()); ok {
			each(line, cursor)
		}
	}
	bad := in.Err()
	if bad != nil {
		_ = cmd.Cancel()
	}
	if err := cmd.Wait(); err != nil && ctx.Err() == nil && bad == nil {
		return fmt.Errorf("%s: %w; it said %q", l.Journal, err, strings.TrimSpace(said.String()))
	}
	return bad
}

// follow has each further line told, until ctx ends, and those from since on.
func (l CallLog) follow(ctx context.Context, since time.Time, each func(calls.Line)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	lines, ended := make(chan calls.Line), make(chan error)
	tell := func(line calls.Line) {
		select {
		case lines <- line:
		case <-ctx.Done():
		}
	}
	running := 0
	run := func(source func() error) {
		running++
		go func() { ended <- source() }()
	}
	if l.Journal != "" {
		run(func() error {
			args := []string{"--follow", "--lines=all"}
			if !since.IsZero() {
				args = append(args, "--since=@"+strconv.FormatInt(since.Unix(), 10))
			}
			return l.Ask(ctx, args, func(line calls.Line, _ string) { tell(line) })
		})
	}
	if _, err := os.Stat(l.File); l.File != "" && (err == nil || l.Journal == "") {
		run(func() error {
			var at calls.Position
			return calls.Watch(ctx, l.File, func() (err error) {
				at, err = calls.Since(l.File, at, tell)
				return err
			})
		})
	}
	var errs []error
	for running > 0 {
		select {
		case line := <-lines:
			if !line.Time.Before(since) {
				each(line)
			}
		case err := <-ended:
			running--
			errs = append(errs, err)
			stop() // one that cannot be followed is not waited for by the other
		}
	}
	return errors.Join(errs...)
}

// cachedOf is the attachment that a line is about, as far as a line says.
func cachedOf(l calls.Line) attach.Cached {
	c := attach.Cached{Network: l.Network, ContainerID: l.Container, IfName: l.IfName}
	switch namespace, name, pod := strings.Cut(l.Pod, "/"); {
	case pod:
		c.Args = [][2]string{{"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", name}}
	case l.Pod != "":
		c.Args = [][2]string{{"K8S_POD_NAME", l.Pod}}
	}
	return c
}

// about tells the lines of the container that a name means, among those that are attached and those that the lines are
// of. Without any, a line to come is judged by itself.
func about(name string, list []attach.Cached, lines []calls.Line) (is func(calls.Line) bool, known bool) {
	if name == "" {
		return func(calls.Line) bool { return true }, true
	}
	candidates := slices.Clone(list)
	for _, l := range lines {
		if l.Container != "" {
			candidates = append(candidates, cachedOf(l))
		}
	}
	owners := map[spec.Owner]bool{}
	for _, c := range attached.Find(name, candidates) {
		owners[c.Owner()] = true
	}
	return func(l calls.Line) bool {
		c := cachedOf(l)
		return owners[c.Owner()] || len(owners) == 0 && len(attached.Find(name, []attach.Cached{c})) > 0
	}, len(owners) > 0
}

// LastCalls are the last calls of a container, the oldest first; nil where no log can be read.
func LastCalls(ctx context.Context, id string, most int) ([]calls.Line, error) {
	ctx, cancel := context.WithTimeout(ctx, app.Patience)
	defer cancel()
	log, wrong := OpenCalls(false)
	all, err := log.Read(ctx, "FAIRLEAD_CONTAINER="+id)
	all = slices.DeleteFunc(all, func(l calls.Line) bool { return l.Container != id })
	return all[max(0, len(all)-most):], errors.Join(wrong, err)
}

// sinceTime reads a time: RFC 3339, a day or a day's time as people write them, or how long ago it was.
func sinceTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, app.Usage("--since %q: want a duration such as 10m, or a time such as %q", text, time.DateTime)
}

// unreadable is an error of the log with what to do about it.
func unreadable(err error) error {
	if err == nil {
		return nil
	}
	hint := ""
	if errors.Is(err, fs.ErrPermission) && unix.Geteuid() != 0 {
		hint = app.HintPrivilege
	}
	return app.Fail(app.ExitFailure, hint, "the log of calls: %w", err)
}
