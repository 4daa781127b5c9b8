package invoke

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/fairlead-cni/fairlead/spec"
)

// A Call is what one execution of a plugin is told: its environment and its stdin (clause P1), and what
// an error about it should name.
type Call struct {
	Command     string   // CNI_COMMAND: ADD, CHECK, DEL, GC, STATUS, VERSION
	ContainerID string   // CNI_CONTAINERID
	Netns       string   // CNI_NETNS
	IfName      string   // CNI_IFNAME
	Args        string   // CNI_ARGS
	Path        []string // CNI_PATH
	Env         []string // the environment that these join; nil is the caller's own
	Stdin       []byte   // the configuration

	Type    string // for errors
	Network string // for errors

	Stderr   io.Writer     // receives the plugin's stderr while it runs; nil is nowhere
	Delegate bool          // a plugin runs this one: it stays in the caller's process group
	Grace    time.Duration // between SIGTERM and SIGKILL; 0 is DefaultGrace
}

// DefaultGrace is the time that a plugin has to clean up when its caller's deadline has passed.
const DefaultGrace = 2 * time.Second

// Run runs the plugin at path once and returns what it printed on stdout.
func Run(ctx context.Context, path string, c Call) (stdout []byte, err error) {
	return nil, errors.New("not yet")
}

// Versions asks a plugin which versions of the protocol it speaks.
func Versions(ctx context.Context, path string) ([]spec.Version, error) {
	return nil, errors.New("not yet")
}

// An ExecError says that a plugin failed: which one, doing what for whom, how it ended and what it
// printed (clause R12). It unwraps to the plugin's own *spec.Error where stdout held one, and to the
// context's error where the caller's time ran out.
type ExecError struct {
	Type, Path  string
	Command     string
	Network     string
	ContainerID string
	IfName      string
	Status      int    // exit status; -1 where there is none
	Signal      string // what killed it, such as "killed"
	Ran         time.Duration
	Stdout      []byte // the first KiB
	Stderr      []byte // the first KiB
}
