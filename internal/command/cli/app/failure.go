package app

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// HintEnvironment says where the environment variables are described.
const HintEnvironment = "`fairlead help environment` describes the variables."

// Denied reports whether err is for lack of a privilege.
func Denied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EPERM)
}

// The exit statuses. docs/cli.md says what each means.
const (
	ExitOK       = 0
	ExitFailure  = 1
	ExitUsage    = 2
	ExitFault    = 3 // check found a difference, repair could not restore something, or doctor found a fault
	ExitNotFound = 4 // no such network, network namespace or attachment
	ExitTryAgain = 5 // a temporary condition (code 11 of the protocol)

	ExitNotExecutable = 126 // run: as a shell reports that a command cannot be executed
	ExitNoCommand     = 127
	ExitSignal        = 128 // plus the signal's number
)

// Failure is an error that has its exit status and a hint.
type Failure struct {
	Exit int
	Hint string // what to do next
	err  error
}

func (f *Failure) Error() string { return f.err.Error() }

func (f *Failure) Unwrap() error { return f.err }

// Fail returns an error with its exit status and a hint, which says what to do next.
func Fail(exit int, hint, format string, args ...any) error {
	return &Failure{exit, hint, fmt.Errorf(format, args...)}
}

// Usage returns an error about the command line or the environment, with a hint to their description.
func Usage(format string, args ...any) error {
	return Fail(ExitUsage, "", format, args...)
}

// HintPrivilege says what to do if a privilege is missing.
const HintPrivilege = "Run it with sudo. To try Fairlead without root, use a throw-away host: `fairlead host`."
