package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// An operation is one verb for one attachment, or for a network.
type operation struct {
	r       *Runtime
	verb    string
	l       *spec.List
	a       Attachment // of a network: zero
	owner   spec.Owner
	args    string
	version spec.Version // that the plugins are spoken to in
	seen    string       // ADD: which namespace it is
	valid   []spec.Attachment
	refused bool          // a plugin answered that it does not speak version
	tried   bool          // another version than the newest
	each    time.Duration // what each plugin has, beside ctx; 0 is no bound
	unlock  []func()
}

// begin checks the names of the attachment, because they become file names, and takes the locks.
func (r *Runtime) begin(ctx context.Context, verb string, l *spec.List, a Attachment) (*operation, error) {
	op := &operation{
		r: r, verb: verb, l: l, a: a,
		owner: spec.Owner{Network: l.Name, ContainerID: a.ContainerID, IfName: a.IfName},
	}
	if err := op.prepare(); err != nil {
		return nil, err
	}
	if err := op.lock(ctx); err != nil {
		op.end()
		return nil, op.failed(err)
	}
	return op, nil
}

func (op *operation) prepare() error {
	if err := spec.ValidName(op.l.Name); err != nil {
		return op.failed(spec.Errorf(spec.CodeConfig, "network %w", err))
	}
	if err := errors.Join(spec.ValidContainerID(op.a.ContainerID), spec.ValidIfName(op.a.IfName)); err != nil {
		return op.failed(spec.Errorf(spec.CodeEnvironment, "%w", err))
	}
	var err error
	if op.version, err = spec.Select(op.l); err != nil {
		return op.failed(err)
	}
	if op.args, err = spec.FormatArgs(op.a.Args); err != nil {
		return op.failed(spec.Errorf(spec.CodeEnvironment, "%w", err))
	}
	return nil
}

func (op *operation) lock(ctx context.Context) error {
	unlock, err := op.r.lockNetwork(ctx, op.owner.Network, false)
	if err != nil {
		return err
	}
	op.unlock = append(op.unlock, unlock)
	if unlock, err = op.r.lockContainer(ctx, op.owner.ContainerID); err != nil {
		return err
	}
	op.unlock = append(op.unlock, unlock)
	return nil
}

func (op *operation) end() {
	for _, unlock := range slices.Backward(op.unlock) {
		unlock()
	}
}

// failed adds the operation to an error. Errors of plugins name it themselves.
func (op *operation) failed(err error) error {
	what := op.owner.String()
	if op.owner.ContainerID == "" {
		what = op.owner.Network
	}
	return fmt.Errorf("%s %s: %w", strings.ToLower(op.verb), what, err)
}

// makeRoom refuses a second ADD (clause R10), and removes an earlier attachment whose namespace no longer exists.
func (op *operation) makeRoom(ctx context.Context) error {
	cached, err := op.recall()
	if cached == nil || err != nil {
		return err
	}
	// A file that nothing is mounted on may hide a namespace from this process; but who attaches the container again
	// knows.
	if _, err := identity(cached.Netns); !op.r.Gone(cached) && !errors.Is(err, errNoNamespace) {
		return fmt.Errorf("%w (%s): delete it first, or choose another interface name", ErrAttached, cached.File)
	}
	if err := op.ofEntry(cached).detach(ctx, cached, true); err != nil {
		return fmt.Errorf("remove the earlier attachment, whose namespace no longer exists: %w", err)
	}
	return nil
}

// recall returns the entry of the cache. A file that contains no attachment is set aside.
func (op *operation) recall() (*Cached, error) {
	cached, err := op.r.load(op.owner)
	if err == nil {
		return cached, nil
	}
	if unanswered(err) { // it may be one
		return nil, err
	}
	kept, failed := op.r.setAside(op.owner)
	if failed != nil {
		return nil, errors.Join(err, failed)
	}
	op.r.warn("%v; it is kept as %s", err, strings.Join(kept, " and "))
	return nil, nil
}

// inherit takes the values that the caller left out, and the version, from ADD.
func (op *operation) inherit(c *Cached) {
	if op.a.Capabilities == nil {
		op.a.Capabilities = c.Capabilities
	}
	if op.a.Args == nil {
		if args, err := spec.FormatArgs(c.Args); err == nil {
			op.args = args
		}
	}
	if c.Result == nil {
		return
	}
	if v := c.Result.CNIVersion; v == op.l.CNIVersion.Or010() || slices.Contains(op.l.CNIVersions, v) {
		op.version = v
	}
}

// remember writes the attachment to the cache.
func (op *operation) remember(result *spec.Result) error {
	return op.r.store(&Cached{
		ContainerID: op.owner.ContainerID, IfName: op.owner.IfName, Network: op.owner.Network,
		Netns: op.a.Netns, Config: op.l.Raw, Args: op.a.Args, Capabilities: op.a.Capabilities,
		Result: result, seen: op.seen,
	})
}

// add runs ADD of all plugins and returns the result of the last one.
func (op *operation) add(ctx context.Context) (*spec.Result, error) {
	var result *spec.Result
	for _, conf := range op.l.Plugins {
		prev := result
		if !op.version.AtLeast(spec.V030) {
			prev = nil
		}
		stdout, err := op.run(ctx, "ADD", conf, op.a.Netns, prev)
		if err != nil {
			return nil, err
		}
		if result, err = spec.DecodeResult(stdout, op.version); err != nil {
			return nil, op.failed(fmt.Errorf("plugin %s: result: %w", conf.Type, err))
		}
		result.CNIVersion = op.version
	}
	return result, nil
}

func (op *operation) check(ctx context.Context, prev *spec.Result, goOn bool) error {
	var errs []error
	for _, conf := range op.l.Plugins {
		_, err := op.run(ctx, "CHECK", conf, op.a.Netns, prev)
		if err != nil && !goOn {
			return err
		}
		if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// rollback undoes a failed ADD. It does not use the caller's context, because a roll-back is needed most when that has
// ended. Each plugin has a time limit of its own, so that one that hangs takes no time from the others.
func (op *operation) rollback(ctx context.Context) error {
	op.each = cmp.Or(op.r.Rollback, DefaultRollback)
	defer func() { op.each = 0 }()
	netns, err := op.r.netnsForDel(op.a.Netns, op.seen)
	if err != nil {
		return err
	}
	_, err = op.del(context.WithoutCancel(ctx), nil, netns, true)
	return err
}

// detach runs DEL of all plugins, and removes the entry of the cache when they have succeeded.
func (op *operation) detach(ctx context.Context, cached *Cached, goOn bool) error {
	var prev *spec.Result
	var seen string
	if cached != nil {
		op.inherit(cached)
		prev, seen = cached.Result, cached.seen
	}
	netns, err := op.r.netnsForDel(op.a.Netns, seen)
	if err != nil {
		return op.failed(err)
	}
	// what is there now is another's
	if cached != nil && netns != "" && netns == cached.Netns && !cached.Gone() && op.r.Gone(cached) {
		netns = ""
	}
	left, err := op.del(ctx, prev, netns, goOn)
	if op.older(ctx) {
		left, err = op.del(ctx, prev, netns, goOn)
	}
	if err != nil {
		if goOn && !slices.Contains(left, 0) { // else the interface is there, and so the attachment is
			err = errors.Join(err, op.r.unfinished(cached, op.types(left)))
		}
		return err
	}
	return op.r.forget(op.owner, cached)
}

func (op *operation) types(plugins []int) (types []string) {
	for _, i := range plugins {
		types = append(types, op.l.Plugins[i].Type)
	}
	return types
}

// del runs DEL of all plugins. Left lists those that failed, by their index in the list.
func (op *operation) del(ctx context.Context, prev *spec.Result, netns string, goOn bool) (left []int, err error) {
	if !op.version.AtLeast(spec.V040) {
		prev = nil
	}
	var errs []error
	for i, conf := range slices.Backward(op.l.Plugins) {
		_, err := op.run(ctx, "DEL", conf, netns, prev)
		if op.each > 0 && refuses(err) { // it has refused ADD too, and made nothing
			continue
		}
		if err != nil {
			errs, left = append(errs, err), append(left, i)
			if !goOn {
				break
			}
		}
	}
	return left, errors.Join(errs...)
}

// stdin returns the standard input of a plugin.
func (op *operation) stdin(verb string, conf *spec.Conf, prev *spec.Result) ([]byte, error) {
	g := spec.Given{Version: op.version, Name: op.l.Name, Capabilities: op.a.Capabilities, Prev: prev, Valid: op.valid}
	if op.a.CNI != nil {
		g.Args = map[string]any{"cni": op.a.CNI}
	}
	return g.Stdin(verb, conf)
}

// run calls one plugin.
func (op *operation) run(ctx context.Context, verb string, conf *spec.Conf, netns string,
	prev *spec.Result) ([]byte, error) {
	path, err := invoke.Find(conf.Type, op.r.PluginDirs)
	if err != nil {
		return nil, op.failed(err)
	}
	stdin, err := op.stdin(verb, conf, prev)
	if err != nil {
		return nil, op.failed(fmt.Errorf("plugin %s: request: %w", conf.Type, err))
	}
	if op.each > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, op.each)
		defer cancel()
	}
	stdout, err := op.r.run()(ctx, path, invoke.Call{
		Command: verb, ContainerID: op.owner.ContainerID, Netns: netns, IfName: op.owner.IfName,
		Args: op.args, Path: op.r.PluginDirs, Env: op.r.Env, Stdin: stdin,
		Type: conf.Type, Network: op.owner.Network, Stderr: op.r.stderr(), Grace: op.r.Grace,
	})
	op.refused = op.refused || refuses(err) || op.owner.ContainerID == "" && misses(err)
	return stdout, err
}

// refuses reports whether a plugin does not support the version.
func refuses(err error) bool {
	var doc *spec.Error
	return errors.As(err, &doc) && doc.Code == spec.CodeVersion
}

// misses reports whether a plugin complains about a missing container, as plugins do that are older than STATUS and GC.
func misses(err error) bool {
	var doc *spec.Error
	return errors.As(err, &doc) && (doc.Code == spec.CodeUnknown || doc.Code == spec.CodeEnvironment)
}

// older reports whether a plugin has refused the version and the list allows another one that all plugins support
// (clause V10). It then sets that version, and the verb must be called again. Asking costs one call of each plugin, so
// it is done only after a plugin has refused.
func (op *operation) older(ctx context.Context) bool {
	if !op.refused || op.tried || len(op.l.CNIVersions) == 0 {
		return false
	}
	op.tried, op.refused = true, false
	speaks, err := op.r.Versions(ctx, op.l)
	if err != nil {
		return false
	}
	common, err := spec.Select(op.l, slices.Collect(maps.Values(speaks))...)
	if err != nil || common == op.version {
		return false
	}
	op.version = common
	return true
}
