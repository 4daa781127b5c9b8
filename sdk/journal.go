package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Journal configures where a plugin records its calls and which commands it runs for each. A failure of the journal
// is reported on stderr and does not fail the call.
type Journal struct {
	File    string                // records are appended to it; empty: to none
	Max     int64                 // bytes; before a record would make it longer, File becomes File.1; zero: no bound
	JSON    bool                  // a record is a JSON document on one line, instead of lines for people
	Command []string              // run for each call, with the record on its stdin; empty: none
	Hooks   map[string][][]string // commands, by verb; ADD's, DEL's and CHECK's run in the container's namespace
	Timeout time.Duration         // of all commands of a call together
}

// Journaled makes p record every call that reaches it, successful or not. If the configuration cannot be read
// completely, the readable keys are used.
func Journaled[C any](p Plugin, of func(C) Journal) Plugin {
	p.journal = func(conf *spec.Conf) Journal {
		var c C
		_, _ = decode(conf, &c, false, "DEL")
		return of(c)
	}
	return p
}

// journalFiles matches the files that a configuration may name without the node's consent.
const journalFiles = "/var/log/cni-*"

// permit takes the commands, and a file that others may use, out of the journal if the node does not allow them. Calls
// that begin something fail then, so that it is seen; the others do their work.
func (j *Journal) permit(verb string) error {
	programs := len(j.Command)
	for _, hooks := range j.Hooks {
		programs += len(hooks)
	}
	own, err := filepath.Match(journalFiles, j.File)
	own = j.File == "" || own && err == nil
	if programs == 0 && own {
		return nil
	}
	allowed, err := calls.CommandsAllowed()
	if allowed {
		return nil
	}
	var keys, does []string
	if programs > 0 {
		keys, does = append(keys, "command and hooks"), append(does, "execute programs")
		j.Command, j.Hooks = nil, nil
	}
	if !own {
		keys, does = append(keys, "cniOutput "+j.File), append(does, "write files other than "+journalFiles)
		j.File = ""
	}
	key, what := strings.Join(keys, ", "), strings.Join(does, " and ")+" as root"
	reason := spec.Errorf(spec.CodeConfig, "%s: this node does not let network configurations %s: remove these keys, "+
		"or allow it with {\"%s\": true} in %s", key, what, calls.CommandsKey, calls.Settings)
	if err != nil {
		reason = spec.Errorf(spec.CodeConfig, "%s: whether this node lets network configurations %s is unknown: %w",
			key, what, err)
	}
	if verb == "ADD" || verb == "STATUS" {
		return reason
	}
	slog.Warn("the call itself is not affected", "err", reason)
	return nil
}

// A journalEntry describes one call.
type journalEntry struct {
	Time   time.Time         `json:"time"` // when it began
	Took   string            `json:"took"`
	Env    map[string]string `json:"env"` // what begins with CNI_
	Stdin  json.RawMessage   `json:"stdin"`
	Result json.RawMessage   `json:"result,omitempty"`
	Error  json.RawMessage   `json:"error,omitempty"`
}

// note records the call and runs the commands of the journal.
func (c *call) note(j Journal, begin time.Time, out []byte, failed error) {
	r := journalEntry{Time: begin.UTC(), Took: time.Since(begin).Round(time.Microsecond).String(),
		Env:   map[string]string{},
		Stdin: c.env.stdin, Result: bytes.TrimSpace(out)}
	for _, kv := range c.env.vars {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "CNI_") {
			r.Env[name] = value
		}
	}
	if failed != nil {
		r.Error = bytes.TrimSpace(document(failed).Encode(c.conf.CNIVersion.Or010()))
	}
	r.Env["CNI_COMMAND"] = c.env.Command // a chain that takes an ADD back asks for DEL
	text := r.lines()
	if j.JSON {
		text = r.line()
	}
	warn := func(what string, err error) {
		if err != nil {
			slog.Warn("the call itself is not affected: "+what, "network", c.conf.Name, "plugin", c.conf.Type, "err",
				err)
		}
	}
	if j.File != "" {
		warn("the journal cannot be written", j.write(text))
	}
	ctx, stop := context.WithTimeoutCause(context.Background(), j.Timeout, fmt.Errorf("the timeout of %v", j.Timeout))
	defer stop()
	for i, argv := range j.Hooks[c.env.Command] {
		what := fmt.Sprintf("command %d of %s (%s) failed", i, c.env.Command, argv[0])
		warn(what, c.inside(func() error { return invoke.Hook(ctx, argv, c.env.call(nil)) }))
	}
	if len(j.Command) > 0 {
		warn(fmt.Sprintf("the journal's command (%s) failed", j.Command[0]),
			invoke.Hook(ctx, j.Command, c.env.call(text)))
	}
}

// inside runs fn in the network namespace that the verb refers to: the container's if it exists, else the host's.
func (c *call) inside(fn func() error) error {
	switch verb := c.env.Command; {
	case verb == "GC" || verb == "STATUS":
		return fn()
	case c.w.Container == nil:
		slog.Info("a command is not run, for there is no network namespace", "verb", verb)
		return nil
	}
	return c.w.Container.Do(fn)
}

// call returns the environment of the current call, with another standard input.
func (e environment) call(stdin []byte) invoke.Call {
	return invoke.Call{Command: e.Command, ContainerID: e.ContainerID, Netns: e.Netns, IfName: e.IfName, Args: e.Args,
		Path: filepath.SplitList(e.Path), Env: e.vars, Stdin: stdin}
}

// line returns the record as one line of JSON. Input that is not JSON becomes a string.
func (r journalEntry) line() []byte {
	if !json.Valid(r.Stdin) {
		r.Stdin, _ = json.Marshal(string(r.Stdin))
	}
	b, err := json.Marshal(r)
	if err != nil {
		b, _ = json.Marshal(map[string]string{"error": err.Error()})
	}
	return append(b, '\n')
}

// lines returns the record in the format of the reference's debug plugin, with the members that that format lacks
// appended.
func (r journalEntry) lines() []byte {
	var b bytes.Buffer
	verb := strings.ToLower(r.Env["CNI_COMMAND"])
	if len(verb) > 2 {
		verb = strings.ToUpper(verb[:1]) + verb[1:]
	}
	say := func(name, value string) {
		if strings.ContainsFunc(value, func(c rune) bool { return unicode.IsControl(c) && !unicode.IsSpace(c) }) {
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&b, "%s: %s\n", name, value)
	}
	variable := func(name, key string) { say(name, strings.ReplaceAll(r.Env[key], "\n", `\n`)) }
	fmt.Fprintf(&b, "Cmd%s\n", verb)
	say("Time", r.Time.Format(time.RFC3339Nano))
	variable("ContainerID", "CNI_CONTAINERID")
	variable("Netns", "CNI_NETNS")
	variable("IfName", "CNI_IFNAME")
	variable("Args", "CNI_ARGS")
	variable("Path", "CNI_PATH")
	say("StdinData", string(bytes.TrimSpace(r.Stdin)))
	if r.Result != nil {
		say("Result", string(r.Result))
	}
	if r.Error != nil {
		say("Error", string(r.Error))
	}
	say("Took", r.Took)
	b.WriteString("----------------------\n")
	return b.Bytes()
}

// write appends a record by one write, so that records of concurrent calls do not mix.
func (j Journal) write(record []byte) error {
	for range 4 { // as often as others rename the file meanwhile
		f, err := j.open()
		if err != nil {
			return err
		}
		full, err := j.full(f, len(record))
		if err == nil && full {
			if err = os.Rename(j.File, j.File+".1"); err == nil {
				f.Close()
				continue
			}
		}
		_, werr := f.Write(record)
		return errors.Join(err, werr, f.Close())
	}
	return fmt.Errorf("%s: other processes fill the file faster than this one can write to it", j.File)
}

// open opens the file without waiting. Opening a pipe without a reader would block forever. It follows no link: in many
// hosts others than root may make one in /var/log.
func (j Journal) open() (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND | syscall.O_NONBLOCK | syscall.O_NOFOLLOW
	f, err := os.OpenFile(j.File, flags, 0o600)
	if err != nil {
		return nil, err
	}
	var st syscall.Stat_t
	err = syscall.Fstat(int(f.Fd()), &st)
	if err == nil && st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		err = errors.New("is not a regular file")
	}
	if err == nil && st.Nlink > 1 {
		err = errors.New("has another name, by a hard link")
	}
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "write", Path: j.File, Err: err}
	}
	return f, nil
}

// full reports whether this call must rename the file before it writes. The file then stays locked until it is closed,
// so that no other call renames it too.
func (j Journal) full(f *os.File, more int) (bool, error) {
	st, err := f.Stat()
	if err != nil || j.Max == 0 || st.Size() == 0 || st.Size()+int64(more) <= j.Max {
		return false, err
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false, nil
	}
	at, err := os.Stat(j.File)
	if err != nil || !os.SameFile(st, at) { // it is renamed already, and the record is at home in what was it
		return false, nil
	}
	return true, nil
}
