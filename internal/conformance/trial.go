package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Subject is a plugin with the configuration that it is tested with.
type Subject struct {
	Path     string         `json:"path"`
	Type     string         `json:"type"`
	Versions []spec.Version `json:"versions,omitempty"` // as VERSION says
	Command  []string       `json:"command,omitempty"`  // of a runtime
	Plugin
}

// A trial is one check of one subject, in a host of its own.
type trial struct {
	ctx        context.Context
	subject    Subject
	version    spec.Version // that is spoken, unless a check says another
	limit      time.Duration
	last       *answer // to the last call
	containers int     // that are attached, or about to be
	addresses  int     // that were given
	network    string  // that a runtime is told; empty is the usual one
	guesses    bool    // it is not known yet what kind of plugin the subject is
}

// network is the name of the network of all trials.
const network = "conformance"

// A request is one call of a plugin.
type request struct {
	verb    string
	version spec.Version
	c       *container
	stdin   []byte // complete; nil: as it is made of what follows
	keys    map[string]any
	without []string         // keys that are left out
	ipam    func(*ipamOrder) // changes what the suite's IPAM plugin is told
	call    invoke.Call
}

// An answer is what a call of a plugin came to.
type answer struct {
	request
	path   string
	line   []string // of a runtime, the words of its command
	stdout []byte
	stderr string
	exit   int
	failed error       // nil: it exited with 0 and printed what it had to
	doc    *spec.Error // its error document
}

// A change alters a request before it is sent.
type change func(*request)

// key sets a key of the configuration.
func key(name string, value any) change { return func(r *request) { r.keys[name] = value } }

// lacking leaves a key of the configuration out.
func lacking(name string) change { return func(r *request) { r.without = append(r.without, name) } }

// in has the plugin spoken to in another version.
func in(v spec.Version) change { return func(r *request) { r.version = v } }

// raw replaces the whole configuration.
func raw(stdin string) change { return func(r *request) { r.stdin = []byte(stdin) } }

// do calls the plugin once. The check ends if the call could not be made; what the plugin did is in the answer.
func (t *trial) do(verb string, c *container, changes ...change) *answer {
	r := request{verb: verb, version: t.version, c: c, keys: map[string]any{}}
	r.call = invoke.Call{Command: verb, Path: []string{filepath.Dir(t.subject.Path), delegates}, Network: network}
	if t.guesses { // an interface plugin that is taken for an IPAM plugin would call itself as its own, without end
		r.call.Path = []string{delegates}
	}
	if c != nil {
		r.call.ContainerID, r.call.Netns, r.call.IfName = c.id, c.netns, c.ifName
	}
	for _, change := range changes {
		change(&r)
	}
	if r.stdin == nil {
		r.stdin = t.conf(r)
	}
	r.call.Stdin = r.stdin
	a := t.execute(r)
	if errors.Is(a.failed, os.ErrNotExist) || errors.Is(a.failed, os.ErrPermission) {
		require(a.failed)
	}
	t.last = a
	return a
}

func (t *trial) execute(r request) *answer {
	ctx, cancel := context.WithTimeout(t.ctx, t.limit)
	defer cancel()
	a := &answer{request: r, path: t.subject.Path}
	var stderr bounded
	r.call.Stderr = &stderr
	a.stdout, a.failed = invoke.Run(ctx, t.subject.Path, r.call)
	a.stderr = string(stderr.kept)
	var e *invoke.ExecError
	if errors.As(a.failed, &e) {
		a.exit, a.stdout = e.Status, e.Stdout
	}
	errors.As(a.failed, &a.doc)
	return a
}

// A bounded keeps the beginning of what is written to it: one that prints on and on fills no memory.
type bounded struct{ kept []byte }

func (b *bounded) Write(p []byte) (int, error) {
	const most = 16 << 20
	b.kept = append(b.kept, p[:min(len(p), most-len(b.kept))]...)
	return len(p), nil
}

// conf is the configuration as a runtime completes it.
func (t *trial) conf(r request) []byte {
	text := strings.ReplaceAll(string(t.subject.Conf), ipamMark, ipamConf(r.c, r.ipam))
	if text == "" {
		text = "{}"
	}
	var o spec.Object
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		require(fmt.Errorf("the configuration of %s in the profile: %w", t.subject.Type, err))
	}
	typ := t.subject.Type
	if t.subject.Kind == IPAM {
		inner := o
		require(inner.Set("type", typ))
		typ, o = parentType, spec.Object{}
		require(o.Set("ipam", inner))
	}
	return r.complete(o, typ, t.subject.RuntimeConfig, r.c.previous(r.version))
}

// complete adds to a configuration what a runtime does, and what the check wants otherwise.
func (r request) complete(o spec.Object, typ string, runtimeConfig, prev json.RawMessage) []byte {
	set := func(name string, value any) { require(o.Set(name, value)) }
	set("cniVersion", r.version)
	set("name", network)
	set("type", typ)
	if len(runtimeConfig) > 0 {
		set("runtimeConfig", runtimeConfig)
	}
	if prev != nil {
		set("prevResult", prev)
	}
	for _, name := range slices.Sorted(maps.Keys(r.keys)) {
		set(name, r.keys[name])
	}
	for _, name := range r.without {
		o.Delete(name)
	}
	return must(o.MarshalJSON())
}

// add attaches a container, and remembers the result.
func (t *trial) add(c *container, changes ...change) {
	a := t.succeed("ADD", "ADD", c, changes...)
	c.prev = a.stdout
	var err error
	c.result, err = spec.DecodeResult(a.stdout, a.version)
	expect(err == nil, "a result of version "+string(a.version), "%v in %s", err, a)
}

// succeed calls the plugin, which must not fail.
func (t *trial) succeed(what, verb string, c *container, changes ...change) *answer {
	a := t.do(verb, c, changes...)
	a.expect(a.failed == nil, what+" to succeed")
	return a
}

// attached makes a container and attaches it.
func (t *trial) attached(id string) *container {
	c := t.container(id)
	t.add(c)
	return c
}

// String says how the call ended and what it printed.
func (a *answer) String() string {
	s := fmt.Sprintf("%s: exit status %d", a.verb, a.exit)
	switch {
	case a.doc != nil:
		s += fmt.Sprintf(", code %d: %s", a.doc.Code, a.doc)
	case len(bytes.TrimSpace(a.stdout)) > 0:
		s += ", stdout " + excerpt(string(a.stdout))
	default:
		s += ", nothing on stdout"
	}
	if a.line != nil && a.stderr != "" {
		s += ", stderr " + excerpt(a.stderr)
	}
	if a.doc == nil && a.failed != nil && a.exit <= 0 {
		s += fmt.Sprintf(" (%v)", a.failed)
	}
	return s
}

// shell is the call as it is typed.
func (a *answer) shell() string {
	if a.line != nil {
		return strings.Join(a.line, " ")
	}
	var b strings.Builder
	for _, v := range []struct{ name, value string }{{"COMMAND", a.verb}, {"CONTAINERID", a.call.ContainerID},
		{"NETNS", a.call.Netns}, {"IFNAME", a.call.IfName}, {"ARGS", a.call.Args},
		{"PATH", strings.Join(a.call.Path, ":")}} {
		if v.value != "" {
			fmt.Fprintf(&b, "CNI_%s=%s ", v.name, quoted(v.value))
		}
	}
	var stdin bytes.Buffer
	if json.Compact(&stdin, a.stdin) != nil {
		stdin.Reset()
		stdin.Write(a.stdin)
	}
	fmt.Fprintf(&b, "%s <<<%s", a.path, quoted(stdin.String()))
	return b.String()
}

// quoted is a word for a shell.
func quoted(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-:=") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// excerpt is a text on one line, cut where it gets long.
func excerpt(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 500 {
		s = strings.ToValidUTF8(s[:500], "") + " …"
	}
	return s
}
