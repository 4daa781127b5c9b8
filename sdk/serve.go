package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/internal/kernel/tap"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// Serve answers the call in the environment and standard input of this process, as the plugin called name, and returns
// the exit status. All lists every plugin of the program, because one may use another as its IPAM plugin. Build is the
// version of the program, or "" for that of its module.
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
			p.Name, Version(build), p.Synopsis, join4(spec.Versions()))
		return 0
	}
	s := &site{all: all, build: build, own: sameProgram}
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

// maxConf limits how many bytes are read from standard input.
const maxConf = plainfile.MaxSize

// answer returns what the call prints, and the version in which an error is printed. Only its caller writes to stdout,
// once.
func answer(s *site, p Plugin, e environment) (spec.Version, []byte, error) {
	if e.Command == "VERSION" {
		out, err := versions(p, s.build, askedVersion())
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
	if e.Command == extra.VerbPlan || e.Command == extra.VerbRepair {
		out, err := s.extra(context.Background(), p, e, stdin)
		return spec.Newest, out, err
	}
	return s.serveCall(context.Background(), p, e, stdin)
}

// serveCall answers a call whose environment is valid.
func (s *site) serveCall(ctx context.Context, p Plugin, e environment, stdin []byte) (spec.Version, []byte, error) {
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
	defer s.enter(ctx, e)()
	out, err := s.serve(ctx, p, e, conf)
	return version, out, err
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
		return spec.Errorf(spec.CodeConfig, "prevResult is missing: CHECK compares the container with it")
	case verb == "ADD" && conf.PrevResult == nil && p.role == chained:
		return spec.Errorf(spec.CodeConfig,
			"prevResult is missing: %s works on what a plugin before it made, so it cannot be the first of a list",
			p.Name)
	}
	return nil
}

// A site is what calls share that are answered together, such as those of the plugins in a chain.
type site struct {
	all   []Plugin               // of the program
	build string                 // its version, or "" for that of its module
	own   func(path string) bool // whether the file at path holds the plugins of this program, too
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
	j := p.journal(conf)
	err := j.permit(e.Command)
	var out []byte
	if err == nil {
		out, err = c.answer(ctx)
	}
	c.note(j, begin, out, err)
	return out, err
}

// answer executes the verb of a call.
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
		return c.run(ctx, c.ipam)
	case p.role == makesLinks && p.addresses(conf):
		if err := c.findIPAM(); err != nil {
			return nil, err
		}
		if i, ok := c.ipam.(inside); ok && (c.r.verb == "ADD" || c.r.verb == "STATUS") {
			c.r.Ranges, c.r.PathMTU = ranges(i.Allocator), pathMTU(i.Allocator)
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
	return c.run(ctx, c)
}

// findIPAM finds the IPAM plugin of an interface plugin.
func (c *call) findIPAM() (err error) {
	verb := c.env.Command
	if c.ipam, err = c.newDelegate(); err == nil || !removes(verb) {
		return err
	}
	// All else goes, and then the address is said to have stayed; but for an ADD that was refused for the same reason,
	// and so got none.
	c.ipam = lost{err: err}
	known, rerr := c.w.Store.Get(resource.MadeRecord, c.r.Owner, new(kernel.Identity))
	if verb == "DEL" && c.r.Prev == nil && !known && rerr == nil {
		c.ipam = nil
	}
	return nil
}

// run has the verb answered by a plugin or by its IPAM alone. An ADD whose answer cannot be written is undone.
func (c *call) run(ctx context.Context, of verbs) ([]byte, error) {
	switch c.env.Command {
	case "ADD":
		res, err := of.add(ctx)
		if err != nil {
			return nil, err
		}
		out, err := res.Encode(c.conf.CNIVersion.Or010())
		if err != nil {
			undo, stop := undoing(ctx)
			defer stop()
			return nil, errors.Join(err, of.del(undo))
		}
		return out, nil
	case "CHECK":
		err := of.check(ctx)
		if all := spec.DifferencesIn(err); slices.ContainsFunc(all, spec.Difference.Known) {
			err = all
		}
		return nil, err
	case "DEL":
		return nil, of.del(ctx)
	case "GC":
		return nil, of.gc(ctx)
	default:
		return nil, of.status(ctx)
	}
}

// lost is an IPAM plugin that could not be found or opened when addresses had to be released.
type lost struct {
	delegate // nil, for other verbs do not come this far
	err      error
}

func (l lost) del(context.Context) error { return l.err }
func (l lost) gc(context.Context) error  { return l.err }
func (l lost) needsLink() bool           { return false }
