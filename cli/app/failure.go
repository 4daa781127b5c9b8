package app

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// HintEnvironment says where the variables of the environment are described.
const HintEnvironment = "`fairlead help environment` says what is understood."

// Denied reports whether something could not be looked at for want of a right.
func Denied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EPERM) || DeniedText(fmt.Sprint(err))
}

// DeniedText is denied of an error that is known by its words only.
func DeniedText(line string) bool {
	return strings.Contains(line, "permission denied") || strings.Contains(line, "operation not permitted")
}

// The exit statuses.
const (
	ExitOK       = 0
	ExitFailure  = 1
	ExitUsage    = 2
	ExitDrift    = 3 // check found something missing or changed, repair cannot mend it, or doctor found a fault
	ExitNotFound = 4 // no such network, network namespace or attachment
	ExitTryAgain = 5 // a passing condition (the protocol's code 11)

	ExitNotExecutable = 126 // run: as a shell says it of a command
	ExitNoCommand     = 127
	ExitSignal        = 128 // and the signal's number
)

// A Failure is an error whose exit status and way out are known where it arises.
type Failure struct {
	Exit int
	Hint string // what to do next
	err  error
}

func (f *Failure) Error() string { return f.err.Error() }

func (f *Failure) Unwrap() error { return f.err }

// Fail is an error with its exit status and what to do next.
func Fail(exit int, hint, format string, args ...any) error {
	return &Failure{exit, hint, fmt.Errorf(format, args...)}
}

// Usage is an error in what the command was given; the hint is where that is described.
func Usage(format string, args ...any) error {
	return Fail(ExitUsage, "", format, args...)
}

// HintPrivilege says what to do without the right to do it.
const HintPrivilege = "Use sudo; or, to try it without, a throw-away host of your own: `fairlead host`."
