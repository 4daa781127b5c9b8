// Package attach attaches containers to networks. It runs the plugins of a list in order, rolls back a failed ADD, and
// stores the results where the reference library stores them.
package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// Where the state lies unless a Runtime says otherwise.
const (
	DefaultCacheDir = "/var/lib/cni"      // the reference library's
	DefaultLockDir  = "/run/cni/fairlead" // dies with the boot, as the locks do
)

// DefaultRollback limits how long each plugin may take to roll back a failed ADD.
const DefaultRollback = 30 * time.Second

// A Runtime runs plugins. Only PluginDirs is required. Its methods may be called concurrently.
type Runtime struct {
	PluginDirs []string  // where plugins are looked for; the first match wins (clause R11)
	CacheDir   string    // attachments are remembered in results/ below it; default DefaultCacheDir
	LockDir    string    // default DefaultLockDir
	Stderr     io.Writer // receives the plugins' stderr, and warnings; nil is nowhere
	Env        []string  // what plugins find beside the protocol's variables; nil is our own environment

	// Run runs a plugin; nil is invoke.Run. With that of sdk.Here, plugins that are this very program need no process.
	Run invoke.Runner

	// Grace is what a plugin has to clean up when its caller's time has run out: first SIGTERM, then, Grace
	// later, SIGKILL. Default invoke.DefaultGrace.
	Grace time.Duration

	// Rollback is what each plugin has to take back a failed ADD, whatever the caller's deadline. Default
	// DefaultRollback.
	Rollback time.Duration

	// Vanished is asked whether the namespace of an attachment is gone whose path leads to one: the inode of a dead
	// namespace comes back as another's, which follows from the kernel alone. nil names none.
	Vanished func(*Cached) bool

	waiting queue
	writing sync.Mutex // to Stderr
}

// An Attachment names what to attach: one interface of one container.
type Attachment struct {
	ContainerID string
	Netns       string // path of the network namespace; DEL goes without
	IfName      string
	Args        [][2]string // CNI_ARGS, in this order

	// Capabilities are what the runtime offers, by the names of the conventions: portMappings, ips,
	// mac and so on; type Capabilities makes them. A plugin gets those that its configuration declares (clause R7), and
	// [spec.List.Capabilities] are those that any declares.
	Capabilities map[string]any

	// CNI is `args.cni`, such as labels (clause K11). Where it is set it replaces the `args` of the
	// configuration (clause C9).
	CNI map[string]any
}

var (
	// ErrAttached is wrapped by the error of Add when the attachment is there already (clause R10).
	ErrAttached = errors.New("is attached already")

	// ErrNotAttached is wrapped by the error of Check when there is nothing to check (clause R6).
	ErrNotAttached = errors.New("is not attached")
)

// Add attaches a container: it runs ADD of each plugin in order, each with the result of the one before,
// and remembers the last result (clauses R1-R3, R6, R7).
//
// A failed ADD is followed by DEL of the whole list in reverse, even of plugins not reached (clause R5)
// and even when ctx has ended; what fails then joins the error. A plugin that cannot be found is noticed
// before any runs, and then there is nothing to take back.
//
// What is attached already is refused with ErrAttached, unless the namespace that it was attached to is gone or has
// become another one, as after a reboot: then that one is deleted first, by the list that it was attached by.
func (r *Runtime) Add(ctx context.Context, l *spec.List, a Attachment) (*spec.Result, error) {
	op, err := r.begin(ctx, "ADD", l, a)
	if err != nil {
		return nil, err
	}
	defer op.end()
	if op.seen, err = identity(a.Netns); err != nil { // clause R1
		return nil, op.failed(fmt.Errorf("network namespace: %w", err))
	}
	if err := op.makeRoom(ctx); err != nil {
		return nil, op.failed(err)
	}
	for _, conf := range l.Plugins {
		if _, err := invoke.Find(conf.Type, r.PluginDirs); err != nil {
			return nil, op.failed(err)
		}
	}
	result, err := op.add(ctx)
	if op.older(ctx) {
		if err = op.rollback(ctx); err == nil {
			result, err = op.add(ctx)
		}
	}
	if err == nil {
		err = op.remember(result)
	}
	if err == nil {
		return result, nil
	}
	if undo := op.rollback(ctx); undo != nil {
		err = leftError{fmt.Errorf("%w; and the roll-back failed: %w", err, undo)}
	}
	return nil, err
}

// leftError is the error of an ADD that failed, and whose roll-back failed, too.
type leftError struct{ error }

func (e leftError) Unwrap() error { return e.error }

// Left reports that something is left of the attachment, for DEL to remove.
func (leftError) Left() bool { return true }

// An Option changes what Del or Check does.
type Option func(*options)

type options struct{ goOn bool }

// Continue makes Del and Check go on after a plugin has failed, and joins the errors. Without it, the first error ends
// the call (clause R4). Del then also calls the plugins before the failed one. If only plugins behind the first one
// fail, [Cached.Left] names them from then on. Check calls all plugins in their order.
func Continue() Option { return func(o *options) { o.goOn = true } }

func chosen(all []Option) (o options) {
	for _, option := range all {
		option(&o)
	}
	return o
}

// Del detaches a container: it runs DEL of each plugin in reverse order with the stored result, and removes the entry
// of the cache when all have succeeded (clauses R2-R4, R6). If the cache has no entry, the plugins are called
// nevertheless, because they may still hold something. An entry that cannot be read is renamed to NAME.corrupt, and DEL
// goes on without it. If Args and Capabilities are nil, those of ADD are used. As in the reference library, the caller
// chooses the list; [Cached.AttachedBy] returns the one of ADD.
func (r *Runtime) Del(ctx context.Context, l *spec.List, a Attachment, options ...Option) error {
	op, err := r.begin(ctx, "DEL", l, a)
	if err != nil {
		return err
	}
	defer op.end()
	cached, unreadable := op.recall() // one that is no attachment never stops a DEL
	if unanswered(unreadable) {
		return op.failed(unreadable)
	}
	err = op.detach(ctx, cached, chosen(options).goOn)
	if unreadable != nil {
		err = errors.Join(err, op.failed(unreadable))
	}
	return err
}

// Check runs CHECK of each plugin in order with the stored result, up to the first error. A list of a version before
// 0.4.0 has no CHECK: that is an error (clause V8). With disableCheck, Check does nothing (clause C6). If Args and
// Capabilities are nil, those of ADD are used.
func (r *Runtime) Check(ctx context.Context, l *spec.List, a Attachment, options ...Option) error {
	op, err := r.begin(ctx, "CHECK", l, a)
	if err != nil {
		return err
	}
	defer op.end()
	if !op.version.AtLeast(spec.V040) {
		return op.failed(spec.Errorf(spec.CodeVersion, "version %s has no CHECK", op.version))
	}
	if l.DisableCheck {
		return nil
	}
	cached, err := r.load(op.owner)
	switch {
	case err != nil:
		return op.failed(err)
	case cached == nil:
		return op.failed(ErrNotAttached)
	case cached.noResult != nil:
		return op.failed(cached.noResult)
	}
	op.inherit(cached)
	now, err := identity(a.Netns)
	switch {
	case err != nil:
		return op.failed(fmt.Errorf("network namespace: %w", err))
	case cached.seen != "" && cached.seen != now:
		return op.failed(fmt.Errorf("network namespace %s is not the namespace that was attached", a.Netns))
	}
	goOn := chosen(options).goOn
	err = op.check(ctx, cached.Result, goOn)
	if op.older(ctx) {
		err = op.check(ctx, cached.Result, goOn)
	}
	return err
}

func (r *Runtime) cacheDir() string { return cmp.Or(r.CacheDir, DefaultCacheDir) }
func (r *Runtime) lockDir() string  { return cmp.Or(r.LockDir, DefaultLockDir) }

func (r *Runtime) run() invoke.Runner {
	if r.Run != nil {
		return r.Run
	}
	return invoke.Run
}

func (r *Runtime) environ() []string {
	if r.Env != nil {
		return r.Env
	}
	return os.Environ()
}

func (r *Runtime) warn(format string, args ...any) {
	if r.Stderr != nil {
		fmt.Fprintf(r.stderr(), "warning: "+format+"\n", args...)
	}
}
