package sdk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/calls"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/tap"
	"github.com/fairlead-cni/fairlead/spec"
)

// An environment is what a runtime passes in addition to standard input (clause P1).
type environment struct {
	Command, ContainerID, Netns, IfName, Args, Path, Override string

	args  [][2]string
	stdin []byte

	here   bool      // this process is a runtime's
	vars   []string  // all variables
	stderr io.Writer // for that of what is executed
}

func (e environment) netnsOverride() bool {
	on, err := parseBool(e.Override)
	return err == nil && on
}

func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "1", "true":
		return true, nil
	case "0", "false", "":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", s)
}

// Serve answers the call in the environment and standard input of this process, as the plugin called name, and returns
// the exit status. All lists every plugin of the program, because one may use another as its IPAM plugin.
func Serve(all []Plugin, name, build string) int {
	LogTo(os.Stderr)
	var p Plugin
	for _, q := range all {
		if q.Name == name {
			p = q
		}
	}
	e := environment{
		Command: os.Getenv("CNI_COMMAND"), ContainerID: os.Getenv("CNI_CONTAINERID"), Netns: os.Getenv("CNI_NETNS"),
		IfName: os.Getenv("CNI_IFNAME"), Args: os.Getenv("CNI_ARGS"), Path: os.Getenv("CNI_PATH"),
		Override: os.Getenv("CNI_NETNS_OVERRIDE"),
		vars:     os.Environ(), stderr: os.Stderr,
	}
	if tp, ok := os.LookupEnv(tap.LabelledVar); ok && e.Command == "" {
		return tap.Give(tp)
	}
	if e.Command == "" {
		fmt.Fprintf(os.Stderr, "fairlead %s (%s): %s\nCNI protocol versions: %s\n"+
			"A container runtime runs this, with CNI_COMMAND and the network's configuration on stdin.\n",
			p.Name, build, p.Synopsis, join4(spec.Versions()))
		return 0
	}
	s := &site{all: all}
	s.begin(p, e)
	version, out, err := answer(s, p, e)
	if err != nil {
		out = document(err).Encode(version)
	}
	if len(out) > 0 {
		if _, werr := os.Stdout.Write(out); werr != nil {
			fmt.Fprintln(os.Stderr, "write to stdout:", werr)
			err = spec.Errorf(spec.CodeIO, "write to stdout: %w", werr)
		}
	}
	if s.end(err); err != nil {
		return 1
	}
	return 0
}

// LogTo sends the warnings of plugins to w, as lines of slog without the time.
func LogTo(w io.Writer) {
	slog.SetDefault(slog.New(slog.NewTextHandler(w,
		&slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime})))
}

func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey && len(groups) == 0 {
		return slog.Attr{}
	}
	return a
}

func join4(vs []spec.Version) string {
	var s []string
	for _, v := range vs {
		s = append(s, string(v))
	}
	return strings.Join(s, ", ")
}

// maxConf limits how many bytes are read from standard input.
const maxConf = spec.MaxFile

// answer returns what the call prints, and the version in which an error is printed. Only its caller writes to stdout,
// once.
func answer(s *site, p Plugin, e environment) (spec.Version, []byte, error) {
	if e.Command == "VERSION" {
		out, err := versions(p, askedVersion())
		return spec.Newest, out, err
	}
	if err := e.validate(); err != nil {
		return spec.Newest, nil, err
	}
	stdin, err := io.ReadAll(io.LimitReader(os.Stdin, maxConf+1))
	if err == nil && len(stdin) > maxConf {
		err = fmt.Errorf("more than %d bytes", maxConf)
	}
	if err != nil {
		return spec.Newest, nil, spec.Errorf(spec.CodeIO, "read the network configuration from stdin: %w", err)
	}
	if e.Command == verbPlan || e.Command == verbRepair {
		out, err := s.extra(context.Background(), p, e, stdin)
		return spec.Newest, out, err
	}
	return s.told(context.Background(), p, e, stdin)
}

// told answers a call whose environment is valid.
func (s *site) told(ctx context.Context, p Plugin, e environment, stdin []byte) (spec.Version, []byte, error) {
	e.stdin = stdin
	conf, err := spec.ParseConf(stdin)
	ctx = s.about(ctx, conf)
	if err != nil && (conf == nil || e.Command != "DEL") { // DEL does without an unreadable result (clause P12)
		return versionOf(stdin), nil, err
	}
	version := conf.CNIVersion.Or010()
	if err := speaks(e.Command, version); err != nil {
		return versionOf(stdin), nil, err
	}
	s.w = newWorld()
	defer s.w.Close()
	out, err := s.serve(ctx, p, e, conf)
	return version, out, err
}

// versionOf returns the version in a configuration that could not be parsed, as far as it is visible.
func versionOf(stdin []byte) spec.Version {
	var v struct{ CNIVersion spec.Version }
	if json.Unmarshal(stdin, &v) == nil && v.CNIVersion.Or010().Known() {
		return v.CNIVersion.Or010()
	}
	return spec.Newest
}

// askedVersion reads standard input for VERSION. It does not read from a terminal, where nobody would end the input.
func askedVersion() (stdin []byte) {
	if st, err := os.Stdin.Stat(); err == nil && st.Mode()&os.ModeCharDevice == 0 {
		if in, err := io.ReadAll(io.LimitReader(os.Stdin, maxConf)); err == nil {
			return in
		}
	}
	return nil
}

// versions answers VERSION (clauses V1, V2), and adds the plugin's Offer if the input asks for it.
func versions(p Plugin, stdin []byte) ([]byte, error) {
	info := spec.VersionInfo{CNIVersion: spec.Newest, SupportedVersions: spec.Versions()}
	var asked struct {
		CNIVersion spec.Version
		Fairlead   json.RawMessage
	}
	if len(stdin) > 0 && json.Unmarshal(stdin, &asked) == nil {
		info.CNIVersion = cmp.Or(asked.CNIVersion, spec.Newest)
		if asked.Fairlead != nil {
			out, err := json.Marshal(struct {
				spec.VersionInfo
				Offer *Offer `json:"fairlead,omitempty"`
			}{info, p.offer()})
			return append(out, '\n'), err
		}
	}
	out, err := info.Encode()
	return append(out, '\n'), err
}

const hintVersion = "Change cniVersion in the network's configuration; `fairlead version NET` says what each plugin " +
	"speaks."

// speaks refuses verbs that the version does not have (clauses V3, V8, V9).
func speaks(verb string, v spec.Version) error {
	if !v.Known() {
		return &spec.Error{Code: spec.CodeVersion, Msg: fmt.Sprintf("cniVersion %q is not spoken here", v),
			Details: "this plugin speaks " + join4(spec.Versions()), Hint: hintVersion}
	}
	since := spec.V010
	switch verb {
	case "CHECK":
		since = spec.V040
	case "GC", "STATUS":
		since = spec.V110
	}
	if !v.AtLeast(since) {
		return &spec.Error{Code: spec.CodeVersion,
			Msg:  fmt.Sprintf("%s came with CNI %s, and the configuration's cniVersion is %s", verb, since, v),
			Hint: hintVersion}
	}
	return nil
}

// validate checks the variables that the verb needs and reports every bad one (clauses P2 to P4).
func (e *environment) validate() error {
	var bad []string
	need := func(name, value string, valid func(string) error) {
		if value == "" {
			bad = append(bad, name+" is missing")
		} else if valid != nil {
			if err := valid(value); err != nil {
				bad = append(bad, fmt.Sprintf("%s %q: %v", name, value, err))
			}
		}
	}
	switch e.Command {
	case "ADD", "CHECK":
		need("CNI_CONTAINERID", e.ContainerID, spec.ValidContainerID)
		need("CNI_NETNS", e.Netns, nil)
		need("CNI_IFNAME", e.IfName, spec.ValidIfName)
	case "DEL", verbPlan, verbRepair:
		need("CNI_CONTAINERID", e.ContainerID, spec.ValidContainerID)
		need("CNI_IFNAME", e.IfName, spec.ValidIfName)
	case "GC", "STATUS":
		e.ContainerID, e.Netns, e.IfName, e.Args = "", "", "", ""
	default:
		bad = append(bad, fmt.Sprintf("CNI_COMMAND %q: want ADD, DEL, CHECK, GC, STATUS or VERSION", e.Command))
	}
	args, err := spec.ParseArgs(e.Args)
	if err != nil && e.Command != "DEL" {
		bad = append(bad, err.Error())
	}
	e.args = args
	if len(bad) > 0 {
		return spec.Errorf(spec.CodeEnvironment, "%s", strings.Join(bad, "; "))
	}
	return nil
}

// complete refuses a configuration without the keys that the verb needs.
func complete(p Plugin, verb string, conf *spec.Conf) error {
	switch {
	case verb == "GC" && !conf.HasValidAttachments:
		return spec.Errorf(spec.CodeConfig,
			"cni.dev/valid-attachments is missing; nothing was removed (an empty list would remove everything of "+
				"network %s). "+
				"cnitool gc sends no list: use fairlead gc with --gone, --valid or --all", conf.Name)
	case verb == "CHECK" && conf.PrevResult == nil && !p.observe:
		return spec.Errorf(spec.CodeConfig, "prevResult is missing: CHECK compares with it what there is")
	case verb == "ADD" && conf.PrevResult == nil && p.role == chained:
		return spec.Errorf(spec.CodeConfig,
			"prevResult is missing: %s works on what a plugin before it made, so it cannot be the first of a list",
			p.Name)
	}
	return nil
}

// A site is what calls share that are answered together, such as those of the plugins in a chain.
type site struct {
	all   []Plugin // of the program
	w     *kernel.World
	swept bool        // GC has been over the kinds of all plugins
	line  *calls.Call // the call that is written down; nil: none is

	// seen is what the last plugin of a chain has seen of the links on the host, as long as it holds for the next one:
	// in CHECK all are given the same result, and change nothing.
	seen *Links
}

// serve executes the verb, and records the call if the plugin has a journal.
func (s *site) serve(ctx context.Context, p Plugin, e environment, conf *spec.Conf) ([]byte, error) {
	c := &call{site: s, p: p, conf: conf, env: e}
	if p.journal == nil {
		return c.answer(ctx)
	}
	begin := time.Now()
	out, err := c.answer(ctx)
	c.note(p.journal(conf), begin, out, err)
	return out, err
}

// answer executes the verb of a plugin that is not an IPAM plugin.
func (c *call) answer(ctx context.Context) (out []byte, err error) {
	p, conf, e := c.p, c.conf, c.env
	if err := complete(p, e.Command, conf); err != nil {
		return nil, err
	}
	if p.role == chains {
		return c.chain(ctx, p, e, conf)
	}
	o := spec.Owner{Network: conf.Name, ContainerID: e.ContainerID, IfName: e.IfName}
	if c.r, err = p.NewRequest(e.Command, o, e.Netns, conf, e.args); err != nil {
		return nil, err
	}
	switch {
	case p.role == allocates:
		if c.ipam, err = c.newInside(p); err != nil {
			return nil, err
		}
		return c.allocator(ctx)
	case p.role == makesLinks && p.addresses(conf):
		if c.ipam, err = c.newDelegate(); err != nil && (e.Command == "DEL" || e.Command == "GC") {
			// All else goes, and then the address is said to have stayed; but for an ADD that was refused for the same
			// reason, and so got none.
			c.ipam, err = lost{err}, nil
			if known, rerr := c.w.Store.Get(netnsRecord, o, new(kernel.Identity)); e.Command == "DEL" &&
				c.r.Prev == nil &&
				!known && rerr == nil {
				c.ipam = nil
			}
		}
		if err != nil {
			return nil, err
		}
	}
	// What this program does itself takes a millisecond or two, and a DEL takes it back as after any kill. A
	// delegate that is executed may hang, and only then it is worth the half millisecond of two more threads to
	// take everything back at a signal.
	if _, executed := c.ipam.(*outside); executed && e.Command == "ADD" && !e.here {
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
		defer stop()
	}
	switch e.Command {
	case "ADD":
		res, err := c.add(ctx)
		if err != nil {
			return nil, err
		}
		out, err := res.Encode(conf.CNIVersion.Or010())
		if err != nil {
			undo, stop := undoing(ctx)
			defer stop()
			return nil, errors.Join(err, c.del(undo))
		}
		return out, nil
	case "CHECK":
		return nil, c.check(ctx)
	case "DEL":
		return nil, c.del(ctx)
	case "GC":
		return nil, c.gc(ctx)
	default:
		return nil, c.status(ctx)
	}
}

// allocator executes the verb of an IPAM plugin.
func (c *call) allocator(ctx context.Context) ([]byte, error) {
	switch c.r.verb {
	case "ADD":
		res, err := c.ipam.add(ctx)
		if err != nil {
			return nil, err
		}
		out, err := res.Encode(c.conf.CNIVersion.Or010())
		if err != nil {
			undo, stop := undoing(ctx)
			defer stop()
			return nil, errors.Join(err, c.ipam.del(undo))
		}
		return out, nil
	case "CHECK":
		return nil, c.ipam.check(ctx)
	case "DEL":
		return nil, c.ipam.del(ctx)
	case "GC":
		return nil, c.ipam.gc(ctx)
	default:
		return nil, c.ipam.status(ctx)
	}
}

// lost is an IPAM plugin that could not be found or opened when addresses had to be released.
type lost struct{ err error }

func (l lost) add(context.Context) (*spec.Result, error) { return nil, l.err }
func (l lost) check(context.Context) error               { return l.err }
func (l lost) del(context.Context) error                 { return l.err }
func (l lost) gc(context.Context) error                  { return l.err }
func (l lost) status(context.Context) error              { return l.err }
func (l lost) needsLink() bool                           { return false }
