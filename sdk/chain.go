package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/engine"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// An Inner is the configuration of one plugin in a Chain, in the form that it would have in a list.
type Inner struct{ raw json.RawMessage }

// UnmarshalJSON stores b unchanged: the inner plugin itself decodes it.
func (i *Inner) UnmarshalJSON(b []byte) error { return i.raw.UnmarshalJSON(b) }

// Chain returns a plugin that runs the plugins of a list in its own process. Plugins that are other programs are
// executed. The function inner returns the configurations of the plugins.
func Chain[C any](name, synopsis string, inner func(C) []Inner) Plugin {
	return Plugin{Name: name, Synopsis: synopsis, Conf: *new(C), role: chains,
		inner: func(conf *spec.Conf, verb string) ([]Inner, []unknownKey, error) {
			var c C
			unknown, err := decode(conf, &c, false, verb)
			return inner(c), unknown, err
		}}
}

// A chainCall is one call of a chain.
type chainCall struct {
	*site
	conf  *spec.Conf
	env   environment
	given spec.Given
	links []innerPlugin
}

// An innerPlugin is one plugin of a chain.
type innerPlugin struct {
	at   int
	conf *spec.Conf
	here *Plugin // nil: another program
	path string  // of that
	lost error   // it could not be found
}

// locate adds index and type of the plugin to err, because two plugins of a chain may have the same type.
func (l innerPlugin) locate(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("plugins[%d] (%s): %w", l.at, l.conf.Type, err)
}

// chain executes one call of a chain.
func (s *site) chain(ctx context.Context, p Plugin, e environment, conf *spec.Conf) ([]byte, error) {
	c := &chainCall{site: s, conf: conf, env: e}
	if err := c.open(p); err != nil {
		return nil, err
	}
	var errs []error
	switch e.Command {
	case "ADD":
		return c.add(ctx)
	case "DEL":
		for _, l := range slices.Backward(c.links) {
			_, err := c.run(ctx, "DEL", l, conf.PrevResult)
			errs = append(errs, err)
		}
		return nil, errors.Join(errs...)
	case "GC":
		errs = append(errs, c.sweep(ctx))
	case "STATUS":
		if _, said := conf.Object.Fold("capabilities"); said { // a runtime need not hand the key on
			errs = append(errs, conf.Undeclared())
		}
	}
	for _, l := range c.links {
		_, err := c.run(ctx, e.Command, l, conf.PrevResult)
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// open reads the configurations of the inner plugins and finds their programs, so that nothing is executed if one of
// them is missing. DEL and GC ignore plugins that cannot be found or read: no ADD can have succeeded with them.
func (c *chainCall) open(p Plugin) error {
	inner, unknown, err := p.inner(c.conf, c.env.Command)
	if err != nil {
		return err
	}
	for _, key := range []string{"ipam", "dns"} { // every plugin has these, and here none would read them
		if raw, ok := c.conf.Object.Fold(key); ok {
			unknown = append(unknown, unknownKey{top: key, path: key, key: key, value: raw, know: []string{"plugins"}})
		}
	}
	if err := report(c.conf, c.env.Command, unknown); err != nil {
		return err
	}
	lax := removes(c.env.Command)
	if len(inner) == 0 && !lax {
		return spec.Errorf(spec.CodeConfig, "plugins: is missing or empty: want at least one plugin")
	}
	for i, in := range inner {
		l, err := c.find(i, in)
		switch {
		case err == nil && (l.lost == nil || lax):
			c.links = append(c.links, l)
		case err == nil:
			return l.locate(l.lost)
		case lax:
			slog.Warn(err.Error()+"; it is left out", "network", c.conf.Name, "plugin", c.conf.Type)
		default:
			return err
		}
	}
	c.given = spec.Given{Version: c.conf.CNIVersion.Or010(), Name: c.conf.Name, Valid: c.conf.ValidAttachments}
	if raw, ok := c.conf.Object.Fold("args"); ok {
		c.given.Args = raw
	}
	if raw, ok := c.conf.Object.Fold("runtimeConfig"); ok {
		var all map[string]json.RawMessage
		if err := json.Unmarshal(raw, &all); err != nil && !lax {
			return fieldError(spec.CodeDecode, "runtimeConfig", raw, "want an object")
		}
		c.given.Capabilities = map[string]any{}
		for name, value := range all {
			c.given.Capabilities[name] = value
		}
	}
	return nil
}

// find reads the configuration of an inner plugin and finds its program. If that is this program itself, the plugin is
// called without executing it.
func (c *chainCall) find(i int, in Inner) (innerPlugin, error) {
	path := "plugins[" + strconv.Itoa(i) + "]"
	conf, err := spec.ParsePlugin(in.raw, path)
	if err != nil {
		return innerPlugin{}, err
	}
	l := innerPlugin{at: i, conf: conf}
	if l.path, l.lost = invoke.Find(conf.Type, filepath.SplitList(c.env.Path)); l.lost != nil || !c.own(l.path) {
		return l, nil
	}
	for _, p := range c.all {
		switch {
		case p.Name != conf.Type:
		case p.role == chains:
			return l, spec.Errorf(spec.CodeConfig,
				"%s.type: %q: a chain cannot contain a chain; replace the inner one by its plugins", path,
				conf.Type)
		default:
			l.here = &p
		}
	}
	return l, nil
}

// run calls one inner plugin with the document that a runtime would send to it.
func (c *chainCall) run(ctx context.Context, verb string, l innerPlugin, prev *spec.Result) ([]byte, error) {
	if l.lost != nil {
		return nil, l.locate(l.lost)
	}
	given := c.given
	given.Prev = prev
	stdin, err := given.Stdin(verb, l.conf)
	if err != nil {
		return nil, l.locate(err)
	}
	defer engine.Step(ctx, named(fmt.Sprintf("plugins[%d] %s %s", l.at, verb, l.conf.Type)))()
	e := c.env
	e.Command, e.stdin = verb, stdin
	if l.here == nil {
		call := e.call(stdin)
		call.Network, call.Type, call.Stderr, call.Delegate = c.conf.Name, l.conf.Type, e.stderr, true
		out, err := invoke.Run(ctx, l.path, call)
		return out, l.locate(err)
	}
	conf, err := spec.ParseConf(stdin)
	if err != nil && (conf == nil || verb != "DEL") {
		return nil, l.locate(err)
	}
	out, err := c.serve(ctx, *l.here, e, conf)
	return out, l.locate(err)
}

// add calls ADD of all inner plugins in order, each with the result of the previous one. If one fails, the earlier ones
// are rolled back.
func (c *chainCall) add(ctx context.Context) (out []byte, err error) {
	// it may hang, as a delegate may
	if !c.env.here && slices.ContainsFunc(c.links, func(l innerPlugin) bool { return l.here == nil }) {
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
		defer stop()
	}
	prev := c.conf.PrevResult
	var before []byte
	for i, l := range c.links {
		if !c.given.Version.AtLeast(spec.V030) {
			prev = nil
		}
		var result *spec.Result
		if out, err = c.run(ctx, "ADD", l, prev); err == nil {
			if result, err = spec.DecodeResult(out, c.given.Version); err != nil {
				err = l.locate(fmt.Errorf("result: %w", err))
			}
		}
		if err != nil {
			done := c.links[:i] // one of this program takes back itself what it did
			if l.here == nil || out != nil {
				done = c.links[:i+1]
			}
			return nil, errors.Join(err, c.rollBack(ctx, done, prev))
		}
		prev = result
		prev.CNIVersion = c.given.Version
		if !l.leavesLinks() || !bytes.Equal(out, before) {
			c.seen = nil
		}
		before = out
	}
	return out, nil
}

// leavesLinks reports whether the plugin changes no listed link if it returns the previous result unchanged.
func (l innerPlugin) leavesLinks() bool {
	return l.here != nil && l.here.role == chained && l.here.journal == nil // which runs commands
}

// rollBack calls DEL of the plugins whose ADD succeeded, in reverse order.
func (c *chainCall) rollBack(ctx context.Context, done []innerPlugin, prev *spec.Result) error {
	var errs []error
	for _, l := range slices.Backward(done) {
		undo, stop := undoing(ctx)
		if _, err := c.run(undo, "DEL", l, prev); err != nil {
			errs = append(errs, fmt.Errorf("and the roll-back failed: %w", err))
		}
		stop()
	}
	return errors.Join(errs...)
}

// sweep removes, once for the whole chain, the resources of attachments that are not valid. GC of the inner plugins
// then has only their allocators left to call.
func (c *chainCall) sweep(ctx context.Context) error {
	if !slices.ContainsFunc(c.links, func(l innerPlugin) bool { return l.here != nil }) {
		return nil
	}
	call := &call{site: c.site}
	if err := call.openHost(); err != nil {
		return err
	}
	c.swept = true
	return collectGarbage(ctx, c.w, c.all, c.conf.Name, c.conf.ValidAttachments)
}
