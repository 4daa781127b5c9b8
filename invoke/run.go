package invoke

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A Call is the input of one execution of a plugin: environment and standard input (clause P1), and the names for error
// messages.
type Call struct {
	Command     string   // CNI_COMMAND: ADD, CHECK, DEL, GC, STATUS, VERSION
	ContainerID string   // CNI_CONTAINERID
	Netns       string   // CNI_NETNS
	IfName      string   // CNI_IFNAME
	Args        string   // CNI_ARGS
	Path        []string // CNI_PATH
	Env         []string // the environment that these join; nil is the caller's own
	Stdin       []byte   // the configuration

	Type    string // for errors; default: the name of the file
	Network string // for errors

	// Stderr receives the plugin's stderr while it runs; nil is nowhere. The first KiB is part of the
	// error in any case.
	Stderr io.Writer

	// Delegate is set where one plugin runs another. The delegate stays in the plugin's process group,
	// so that a signal that kills the plugin kills the delegate too.
	Delegate bool

	// Grace is what a plugin is given to clean up between SIGTERM and SIGKILL; 0 is DefaultGrace.
	Grace time.Duration
}

// A Runner executes the plugin at path once, as Run does, with the same errors.
type Runner func(ctx context.Context, path string, c Call) (stdout []byte, err error)

// DefaultGrace is how long a plugin may clean up after its caller's deadline has passed.
const DefaultGrace = 2 * time.Second

const (
	maxStdout = 16 << 20 // no result is this long; a plugin that prints on and on fills no memory
	excerpt   = 1 << 10  // of stdout and stderr, in errors
)

type envKey struct{}

// WithEnv returns a context that adds variables, NAME=VALUE, to the environment of plugins. A runtime that uses tracing
// passes the span of each call this way: TRACEPARENT, TRACESTATE and BAGGAGE, as defined by W3C and OpenTelemetry.
// Plugins get such variables of the runtime's own environment without it.
func WithEnv(ctx context.Context, vars ...string) context.Context {
	return context.WithValue(ctx, envKey{}, vars)
}

// With returns c with the variables of the context.
func (c Call) With(ctx context.Context) Call {
	if vars, ok := ctx.Value(envKey{}).([]string); ok {
		if c.Env == nil {
			c.Env = os.Environ()
		}
		c.Env = append(slices.Clip(c.Env), vars...)
	}
	return c
}

// Run runs the plugin at path once and returns what it printed on stdout. The six variables of the
// protocol are always set, the ones without a value to the empty string; every other variable, such as
// TRACEPARENT, comes from c.Env, and before it from ctx, see [WithEnv].
//
// When ctx ends, the plugin gets SIGTERM and, c.Grace later, SIGKILL. A plugin that a runtime runs leads
// a process group of its own and the whole group gets the signals: its delegates end with it, and an
// interrupt from a terminal reaches the runtime alone, which then decides. When the caller's process
// dies, the plugin gets SIGTERM too: its caller would not learn what it did, and the locks that keep others away
// are gone.
//
// Every failure is an *ExecError.
func Run(ctx context.Context, path string, c Call) (stdout []byte, err error) {
	x := execution{call: c.With(ctx), path: path, start: time.Now()}
	done := make(chan error)
	go func() {
		// The caller's own thread may be locked into another namespace (clause R11). This one is kept
		// until the plugin has ended, for the signal of the caller's death is that of the thread's.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- x.run(ctx)
	}()
	if err := <-done; err != nil {
		return nil, x.failure(ctx, err)
	}
	return x.stdout.kept, nil
}

// Hook executes the command argv, which is not a plugin, with the environment and standard input of c. Its output is
// ignored, and it gets the same signals as a plugin. It is started on the caller's thread, and so in the network
// namespace of that thread. The error ends with what the command printed on stderr.
func Hook(ctx context.Context, argv []string, c Call) error {
	runtime.LockOSThread() // the signal of the caller's death is that of the thread's
	defer runtime.UnlockOSThread()
	x := execution{call: c, path: argv[0], args: argv[1:], hook: true, start: time.Now()}
	err := x.once(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("was ended after %v: %w", time.Since(x.start).Round(time.Millisecond), cause)
	}
	if err != nil && len(x.stderr.kept) > 0 {
		err = fmt.Errorf("%w; stderr %s", err, quoted(x.stderr.kept))
	}
	return err
}

// An execution is one call of Run or Hook.
type execution struct {
	call           Call
	path           string
	args           []string
	hook           bool
	start          time.Time
	state          *os.ProcessState // nil: it never ran
	stdout, stderr buffer
}

// run starts the plugin and waits for it. A file that is open for writing cannot be executed (ETXTBSY): an installer
// copies over it, or another thread of this process forked while it had the file open. The kernel does not report when
// the file becomes free (inotify reports before the write access ends), so this is the only place that waits by the
// clock, for at most busyFor.
func (x *execution) run(ctx context.Context) error {
	giveUp := time.Now().Add(busyFor)
	var busy error
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := x.once(ctx)
		switch {
		case x.state == nil && busy != nil && ctx.Err() != nil:
			return busy // that is why there was no time left
		case !errors.Is(err, syscall.ETXTBSY) || time.Now().After(giveUp):
			return err
		}
		busy = err
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// busyFor limits the wait for a file that is open for writing.
const busyFor = 5 * time.Second

// once makes one try with a new Cmd, because a Cmd cannot be started again, not even after a failed start.
func (x *execution) once(ctx context.Context) error {
	x.stdout, x.stderr = buffer{max: maxStdout}, buffer{max: excerpt, tee: x.call.Stderr}
	cmd := exec.CommandContext(ctx, x.path, x.args...)
	cmd.Env = x.call.Environ()
	cmd.Stdin = bytes.NewReader(x.call.Stdin)
	cmd.Stdout, cmd.Stderr = &x.stdout, &x.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !x.call.Delegate, Pdeathsig: syscall.SIGTERM}
	signal := func(s syscall.Signal) error {
		if x.call.Delegate {
			return cmd.Process.Signal(s)
		}
		return syscall.Kill(-cmd.Process.Pid, s)
	}
	grace := cmp.Or(x.call.Grace, DefaultGrace)
	var kill *time.Timer
	cmd.Cancel = func() error {
		kill = time.AfterFunc(grace, func() { _ = signal(syscall.SIGKILL) })
		return signal(syscall.SIGTERM)
	}
	// The group's SIGKILL comes first and frees the pipes that a delegate holds. What then still holds
	// them left the group on purpose: a daemon. It is not waited for.
	cmd.WaitDelay = grace + 100*time.Millisecond
	err := cmd.Run()
	if kill != nil {
		kill.Stop() // the number of the group may be another's soon
	}
	x.state = cmd.ProcessState
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it exited with 0
	}
	switch {
	case err != nil || x.hook:
	case x.stdout.lost > 0:
		err = fmt.Errorf("stdout is longer than %d bytes", maxStdout)
	case x.call.answers() && len(bytes.TrimSpace(x.stdout.kept)) == 0:
		err = errors.New("stdout is empty")
	case x.call.answers():
		var doc json.RawMessage
		if bad := json.Unmarshal(x.stdout.kept, &doc); bad != nil {
			err = fmt.Errorf("stdout is not one JSON document: %w", bad)
		}
	}
	return err
}

// answers reports whether the verb prints a document when it succeeds (clauses V1, P6).
func (c Call) answers() bool { return c.Command == "ADD" || c.Command == "VERSION" }

// Environ returns the environment of the plugin: c.Env, followed by the variables of the protocol, which take
// precedence.
func (c Call) Environ() []string {
	base := c.Env
	if base == nil {
		base = os.Environ()
	}
	env := make([]string, 0, len(base)+6)
	env = append(env, base...)
	return append(env,
		"CNI_COMMAND="+c.Command,
		"CNI_CONTAINERID="+c.ContainerID,
		"CNI_NETNS="+c.Netns,
		"CNI_IFNAME="+c.IfName,
		"CNI_ARGS="+c.Args,
		"CNI_PATH="+strings.Join(c.Path, string(os.PathListSeparator)),
	)
}

// A buffer stores the first max bytes, counts the rest, and passes all of them to tee. Errors of tee are ignored,
// because the plugin would be killed by a broken pipe.
type buffer struct {
	kept []byte
	max  int
	lost int
	tee  io.Writer
}

func (b *buffer) Write(p []byte) (int, error) {
	keep := p[:min(len(p), b.max-len(b.kept))]
	b.kept = append(b.kept, keep...)
	b.lost += len(p) - len(keep)
	if b.tee != nil {
		_, _ = b.tee.Write(p)
	}
	return len(p), nil
}
