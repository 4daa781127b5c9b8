package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// The exit statuses.
const (
	exitOK       = 0
	exitFailure  = 1
	exitUsage    = 2
	exitDrift    = 3 // check found something missing or changed, repair cannot mend it, or doctor found a fault
	exitNotFound = 4 // no such network, network namespace or attachment
	exitTryAgain = 5 // a passing condition (the protocol's code 11)

	exitNotExecutable = 126 // run: as a shell says it of a command
	exitNoCommand     = 127
	exitSignal        = 128 // and the signal's number
)

// A failure is an error whose exit status and way out are known where it arises.
type failure struct {
	exit int
	hint string // what to do next
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func fail(exit int, hint, format string, args ...any) error {
	return &failure{exit, hint, fmt.Errorf(format, args...)}
}

// usage is an error in what the command was given; the hint is where that is described.
func usage(format string, args ...any) error {
	return fail(exitUsage, "", format, args...)
}

// explain is the exit status for err and what to do next. This is the one place that knows.
func explain(err error) (exit int, hint string) {
	var f *failure
	var sig interrupted
	var file *spec.FileError
	var doc *spec.Error
	var ran *invoke.ExecError
	var path *fs.PathError
	switch {
	case errors.As(err, &f):
		return f.exit, f.hint
	case errors.As(err, &sig):
		return exitSignal + int(sig.sig), "What was begun has been taken back."
	case errors.Is(err, spec.ErrNotFound):
		return exitNotFound, "`fairlead net ls` lists the networks, the built-in one (" + defaultNetwork +
			") too, and what is wrong with their files; NETCONFPATH names their directory."
	case errors.Is(err, attach.ErrNotAttached):
		return exitNotFound, "`fairlead ls` lists what is attached."
	case errors.Is(err, attach.ErrAttached):
		return exitFailure, "Detach it first (`fairlead del`), or choose another interface with -i."
	case errors.Is(err, invoke.ErrNotFound):
		return exitFailure, spec.AsError(err, 0).Hint
	case errors.As(err, &file) && filepath.Dir(file.File) != filepath.Clean(confDir()):
		return exitFailure, "Correct the file."
	case errors.As(err, &file):
		return exitFailure, "Correct the file; `fairlead net ls` reads all of them again."
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EBUSY):
		return exitTryAgain, "Try again in a moment."
	case errors.As(err, &path) && path.Op == "fork/exec" && chmod(path.Path) != "":
		return exitFailure, chmod(path.Path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM):
		if os.Geteuid() == 0 {
			return exitFailure, "This root lacks a capability, as in a container or a user namespace, or what is to be " +
				"written is read-only. To try it without: `fairlead host`."
		}
		return exitFailure, hintPrivilege
	case errors.As(err, &doc):
		errors.As(err, &ran)
		return explainDocument(spec.AsError(err, 0), ran)
	case errors.As(err, &ran):
		return exitFailure, "That is the plugin's own failure; its file can be tried by itself: CNI_COMMAND=VERSION " +
			ran.Path
	}
	return exitFailure, "If it stays when tried again, report it with this line and the file of " +
		"`fairlead support-bundle --mask`."
}

const hintPrivilege = "Use sudo; or, to try it without, a throw-away host of your own: `fairlead host`."

// explainDocument is explain for what a plugin says: its own hint, how whoever has what was asked for gives it back,
// or else what the code alone says. Ran is nil where no plugin was executed.
func explainDocument(doc *spec.Error, ran *invoke.ExecError) (exit int, hint string) {
	exit, hint = explainCode(doc.Code)
	attached, _ := (&attach.Runtime{}).List("")
	own := strings.TrimSpace(doc.Hint + " " + givesBack(doc.Holder, attached))
	if ran != nil && ran.ContainerID == "" && exit == exitNotFound { // STATUS and GC are about no container
		exit = exitFailure
	}
	switch {
	case own != "":
		return exit, own
	case ran == nil:
	case ran.Command == "ADD" && exit == exitFailure && hint == "":
		hint = reclaimable(ran.Network)
	case ran.Command != "ADD" && ran.Command != "STATUS" && hint == hintUnavailable:
		hint = "That is to be mended first. What is attached goes on."
	}
	return exit, hint
}

func explainCode(c spec.Code) (exit int, hint string) {
	switch c {
	case spec.CodeTryAgain:
		return exitTryAgain, "This passes: try again. `fairlead status`, with the network's name, says whether it can serve."
	case spec.CodeUnknown:
		return exitNotFound, "`fairlead ls` lists what is attached."
	case spec.CodeVersion:
		return exitFailure, "Change cniVersion in the network's configuration; `fairlead version NET` says what each " +
			"plugin speaks."
	case spec.CodeUnsupported, spec.CodeConfig, spec.CodeDecode:
		return exitFailure, "Correct the network's configuration; `fairlead net ls` says in which file it is."
	case spec.CodeEnvironment:
		return exitFailure, "Look at the arguments, CNI_ARGS and CAP_ARGS. " + hintEnvironment
	case spec.CodeNetns:
		return exitFailure, "Give a network namespace of its own: `ip netns add NAME`, then NAME."
	case spec.CodeUnavailable, spec.CodeLimited:
		return exitFailure, hintUnavailable
	}
	return exitFailure, "" // the plugin's own words are all that is known
}

const hintUnavailable = "The network serves no new attachment until that is mended."

// A report is an error as -o json prints it.
type report struct {
	Error string    `json:"error"`
	Hint  string    `json:"hint,omitempty"`
	Code  spec.Code `json:"code,omitempty"` // of the protocol
	Exit  int       `json:"exit"`
}

// report says err and what to do next on stderr, and returns the exit status.
func (a *app) report(err error) int {
	exit, hint := explain(err)
	if exit == exitUsage {
		hint = cmp.Or(hint, "`"+a.doing+" --help` says what it takes.")
	}
	if a.json() {
		r := report{Error: err.Error(), Hint: hint, Exit: exit}
		var doc *spec.Error
		if errors.As(err, &doc) {
			r.Code = doc.Code
		}
		printJSON(a.stderr, r)
		return exit
	}
	s := a.style(a.stderr)
	fmt.Fprintln(a.stderr, s.bad("fairlead:")+" "+lines(errors.New(named(err.Error()))))
	if hint != "" {
		fmt.Fprintln(a.stderr, "  "+printable(hint))
	}
	return exit
}
