package invoke

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/spec"
)

// An ExecError says that a plugin failed: which one, doing what for whom, how it ended and what it
// printed (clause R12).
//
// It unwraps to the plugin's own *spec.Error where stdout held one, code and details kept (clause I2);
// to the cause of the context's end where the caller's time ran out; and to the system's error where
// the plugin could not be started.
type ExecError struct {
	Type        string
	Path        string
	Command     string
	Network     string
	ContainerID string
	IfName      string
	Status      int            // the exit status; -1: it did not exit
	Signal      syscall.Signal // what killed it; 0: nothing
	Ran         time.Duration
	Stdout      []byte // the first KiB
	Stderr      []byte // the first KiB

	causes []error
	heard  bool // the caller has had Stderr
	doc    *spec.Error
	ended  error // of the context
}

func (x *execution) failure(ctx context.Context, err error) *ExecError {
	c := x.call
	e := &ExecError{
		Type:        cmp.Or(c.Type, filepath.Base(x.path)),
		Path:        x.path,
		Command:     c.Command,
		Network:     c.Network,
		ContainerID: c.ContainerID,
		IfName:      c.IfName,
		Status:      -1,
		Ran:         time.Since(x.start),
		Stdout:      x.stdout.kept[:min(len(x.stdout.kept), excerpt)],
		Stderr:      x.stderr.kept,
		heard:       c.Stderr != nil,
	}
	if c.Command == "VERSION" { // it is about no container, whatever the environment pretends
		e.ContainerID, e.IfName = "", ""
	}
	if x.state != nil {
		e.Status = x.state.ExitCode()
		if ws, ok := x.state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			e.Signal = ws.Signal()
		}
		e.doc = document(x.stdout.kept)
	}
	if e.doc != nil && e.Status != 0 {
		if e.doc.Hint == "" {
			e.doc.Hint = e.older()
		}
		e.causes = append(e.causes, e.doc)
	}
	if e.ended = ctx.Err(); e.ended != nil {
		e.causes = append(e.causes, context.Cause(ctx))
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) && !errors.Is(err, ctx.Err()) {
		e.causes = append(e.causes, err)
	}
	return e
}

// Refused returns the error of a plugin that answered with doc in the calling process.
func Refused(ctx context.Context, path string, c Call, doc *spec.Error, ran time.Duration) *ExecError {
	e := &ExecError{Type: cmp.Or(c.Type, filepath.Base(path)), Path: path, Command: c.Command, Network: c.Network,
		ContainerID: c.ContainerID, IfName: c.IfName, Status: 1, Ran: ran, heard: c.Stderr != nil, doc: doc,
		causes: []error{doc}}
	if e.ended = ctx.Err(); e.ended != nil {
		e.causes = append(e.causes, context.Cause(ctx))
	}
	return e
}

// older returns the hint for a plugin that is too old for the call. Plugins of Fairlead give that hint themselves.
func (e *ExecError) older() string {
	const newer = "To have newer ones found first, set CNI_PATH to their directory, or install fairlead's in " +
		"/opt/cni/bin; "
	switch c := e.doc.Code; {
	case c == spec.CodeVersion:
		return e.Path + " does not speak that version. " + newer +
			"or change cniVersion in the network's configuration. `fairlead version NET` says what each plugin speaks."
	// about a container, and those name none
	case (e.Command == "STATUS" || e.Command == "GC") && (c == spec.CodeUnknown || c == spec.CodeEnvironment):
		return e.Path + " is older than " + e.Command + ". " + newer +
			"a network whose cniVersion is before 1.1.0 goes without."
	}
	return ""
}

// document returns the error document that a failed plugin printed, or nil. Plugins of the reference library may print
// an error after a result, because their panic handler runs last. So the last document counts.
func document(stdout []byte) *spec.Error {
	var last *spec.Error
	d := json.NewDecoder(bytes.NewReader(stdout))
	for {
		var doc json.RawMessage
		if d.Decode(&doc) != nil {
			return last
		}
		if e, ok := spec.DecodeError(doc); ok {
			last = e
		}
	}
}

// Unwrap returns the plugin's error document, the context's error and the system's error, as far as they exist.
func (e *ExecError) Unwrap() []error { return e.causes }

// Error returns the plugin's message, with plugin and attachment. For a plugin that printed no message or was killed,
// it begins with the plugin and adds how and when it ended, and what it printed.
func (e *ExecError) Error() string {
	spoke := e.doc != nil && e.Status > 0 && e.ended == nil && len(e.causes) == 1
	var b strings.Builder
	if spoke {
		fmt.Fprintf(&b, "%s (plugin %s %s%s; %s)", said(e.doc), e.Type, e.Command, e.about(), e.Path)
	} else {
		fmt.Fprintf(&b, "plugin %s (%s) %s%s: %s", e.Type, e.Path, e.Command, e.about(), e.end())
		for _, cause := range e.causes {
			b.WriteString(": " + cause.Error())
		}
	}
	if e.doc == nil && len(e.Stdout) > 0 {
		b.WriteString("; stdout " + quoted(e.Stdout))
	}
	if len(e.Stderr) > 0 && !(e.heard && e.doc != nil) { // what the document says, and the caller has seen the rest
		b.WriteString("; stderr " + quoted(e.Stderr))
	}
	if e.Status >= 0 && e.doc == nil && len(e.Stdout)+len(e.Stderr) == 0 {
		b.WriteString(", and printed nothing")
	}
	return b.String()
}

// said returns the text of a document. If the document contains the error of another plugin, such as an IPAM plugin,
// the details are that plugin's.
func said(doc *spec.Error) string {
	if its, who, ok := strings.Cut(doc.Msg, " (plugin "); ok && doc.Details != "" {
		return its + "; " + doc.Details + " (plugin " + who
	}
	return doc.Error()
}

// about returns the attachment of the call.
func (e *ExecError) about() string {
	var b strings.Builder
	for _, f := range []struct{ name, value string }{
		{"network", e.Network}, {"container", e.ContainerID}, {"interface", e.IfName},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, " %s %s", f.name, f.value)
		}
	}
	return b.String()
}

// quoted returns output on one line. Output that contains quotes, such as logs, is not quoted again.
func quoted(out []byte) string {
	text := strings.ReplaceAll(string(bytes.TrimSpace(out)), "\n", "; ")
	if strings.Contains(text, `"`) {
		return fmt.Sprintf("%#q", text)
	}
	return strconv.Quote(text)
}

// end returns how and when the plugin ended.
func (e *ExecError) end() string {
	ran := e.Ran.Round(time.Millisecond)
	if e.Ran < 10*time.Millisecond {
		ran = e.Ran.Round(10 * time.Microsecond)
	}
	late := ""
	switch {
	case errors.Is(e.ended, context.DeadlineExceeded):
		late = ", past its deadline"
	case e.ended != nil:
		late = ", its caller having given up"
	}
	switch {
	case e.Signal == syscall.SIGKILL && e.ended == nil:
		return fmt.Sprintf("killed after %v (no caller asked for it; out of memory?)", ran)
	case e.Signal != 0:
		return fmt.Sprintf("ended by signal %q after %v%s", e.Signal, ran, late)
	case e.Status >= 0:
		return fmt.Sprintf("exit status %d after %v%s", e.Status, ran, late)
	case errors.Is(e, os.ErrPermission):
		return "could not be started (is it executable?)"
	case errors.Is(e, os.ErrNotExist):
		if _, err := os.Stat(e.Path); err == nil {
			return "could not be started (the interpreter or loader that it names is missing)"
		}
	}
	return "could not be started"
}
