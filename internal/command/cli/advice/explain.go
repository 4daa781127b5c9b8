// Package advice says what a person should do next: the exit status and the hint of an error, and the commands that
// correct an attachment. It looks for no faults; package doctor does.
package advice

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// Explain returns the exit status for err, and a hint. It is the one place that maps errors to them.
func Explain(err error) (exit int, hint string) {
	var f *app.Failure
	var sig app.Interrupted
	var file *spec.FileError
	var doc *spec.Error
	var ran *invoke.ExecError
	var path *fs.PathError
	switch {
	case errors.As(err, &f):
		return f.Exit, f.Hint
	case errors.As(err, &sig):
		return app.ExitSignal + int(sig.Signal), "What had begun was rolled back."
	case errors.Is(err, spec.ErrNotFound):
		return app.ExitNotFound, "`fairlead net ls` lists the networks, the built-in one (" + netconf.DefaultNetwork +
			") included, and the errors in their files. NETCONFPATH names their directory."
	case errors.Is(err, attach.ErrNotAttached):
		return app.ExitNotFound, "`fairlead ls` lists the attachments."
	case errors.Is(err, attach.ErrAttached):
		return app.ExitFailure, "Detach it first (`fairlead del`), or choose another interface with -i."
	case errors.Is(err, invoke.ErrNotFound):
		return app.ExitFailure, spec.AsError(err, 0).Hint
	case errors.As(err, &file) && filepath.Dir(file.File) != filepath.Clean(netconf.ConfDir()):
		return app.ExitFailure, "Correct the file."
	case errors.As(err, &file):
		return app.ExitFailure, "Correct the file; `fairlead net ls` checks all files."
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EBUSY):
		return app.ExitTryAgain, "Try again in a moment."
	case errors.As(err, &path) && path.Op == "fork/exec" && netconf.Chmod(path.Path) != "":
		return app.ExitFailure, netconf.Chmod(path.Path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM):
		if os.Geteuid() == 0 {
			return app.ExitFailure, "A capability is missing, as in a container or a user namespace, or a path is " +
				"read-only. To try Fairlead without root: `fairlead host`."
		}
		return app.ExitFailure, app.HintPrivilege
	case errors.As(err, &doc):
		errors.As(err, &ran)
		return explainDocument(spec.AsError(err, 0), ran)
	case errors.As(err, &ran):
		return app.ExitFailure, "The plugin itself failed. Test its file with CNI_COMMAND=VERSION " +
			ran.Path
	}
	return app.ExitFailure, "If it fails again, report this line and the file of `fairlead support-bundle --mask`."
}

// explainDocument is Explain for a plugin's error: the plugin's own hint, how the holder releases what was asked
// for, or what the code means. ran is nil if no plugin was executed.
func explainDocument(doc *spec.Error, ran *invoke.ExecError) (exit int, hint string) {
	exit, hint = ExplainCode(doc.Code)
	known, _ := attached.List("")
	own := strings.TrimSpace(doc.Hint + " " + GivesBack(doc, known))
	if ran != nil && ran.ContainerID == "" && exit == app.ExitNotFound { // STATUS and GC concern no container
		exit = app.ExitFailure
	}
	switch {
	case own != "":
		return exit, own
	case ran == nil:
	case ran.Command == "ADD" && exit == app.ExitFailure && hint == "":
		hint = reclaimable(ran.Network)
	case ran.Command != "ADD" && ran.Command != "STATUS" && hint == hintUnavailable:
		hint = "Correct this first. Existing attachments keep working."
	}
	return exit, hint
}

// ExplainCode returns the exit status for a code of the protocol, and a hint. The hint is empty if only the plugin's
// text explains the error.
func ExplainCode(c spec.Code) (exit int, hint string) {
	switch c {
	case spec.CodeTryAgain:
		return app.ExitTryAgain, "This is temporary: try again. `fairlead status NET` says whether the network can " +
			"serve."
	case spec.CodeUnknown:
		return app.ExitNotFound, "`fairlead ls` lists the attachments."
	case spec.CodeVersion:
		return app.ExitFailure, "Change cniVersion in the network's configuration. `fairlead version NET` lists " +
			"the versions of each plugin."
	case spec.CodeUnsupported, spec.CodeConfig, spec.CodeDecode:
		return app.ExitFailure, "Correct the network's configuration; `fairlead net ls` names its file."
	case spec.CodeEnvironment:
		return app.ExitFailure, "Check the arguments, CNI_ARGS and CAP_ARGS. " + app.HintEnvironment
	case spec.CodeNetns:
		return app.ExitFailure, "Give a network namespace other than the host's: `ip netns add NAME`, then NAME."
	case spec.CodeUnavailable, spec.CodeLimited:
		return app.ExitFailure, hintUnavailable
	}
	return app.ExitFailure, "" // only the plugin's text explains the error
}

const hintUnavailable = "The network serves no new attachment until this is corrected."
