// Package advice is what a person should do next: the exit status and the hint for an error, and the commands that
// mend an attachment. It looks for no faults, which is for package doctor.
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
	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/netconf"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
)

// Explain is the exit status for err and what to do next. This is the one place that knows.
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
		return app.ExitSignal + int(sig.Signal), "What was begun has been taken back."
	case errors.Is(err, spec.ErrNotFound):
		return app.ExitNotFound, "`fairlead net ls` lists the networks, the built-in one (" + netconf.DefaultNetwork +
			") too, and what is wrong with their files; NETCONFPATH names their directory."
	case errors.Is(err, attach.ErrNotAttached):
		return app.ExitNotFound, "`fairlead ls` lists what is attached."
	case errors.Is(err, attach.ErrAttached):
		return app.ExitFailure, "Detach it first (`fairlead del`), or choose another interface with -i."
	case errors.Is(err, invoke.ErrNotFound):
		return app.ExitFailure, spec.AsError(err, 0).Hint
	case errors.As(err, &file) && filepath.Dir(file.File) != filepath.Clean(netconf.ConfDir()):
		return app.ExitFailure, "Correct the file."
	case errors.As(err, &file):
		return app.ExitFailure, "Correct the file; `fairlead net ls` reads all of them again."
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EBUSY):
		return app.ExitTryAgain, "Try again in a moment."
	case errors.As(err, &path) && path.Op == "fork/exec" && netconf.Chmod(path.Path) != "":
		return app.ExitFailure, netconf.Chmod(path.Path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM):
		if os.Geteuid() == 0 {
			return app.ExitFailure, "This root lacks a capability, as in a container or a user namespace, or what is to be " +
				"written is read-only. To try it without: `fairlead host`."
		}
		return app.ExitFailure, app.HintPrivilege
	case errors.As(err, &doc):
		errors.As(err, &ran)
		return explainDocument(spec.AsError(err, 0), ran)
	case errors.As(err, &ran):
		return app.ExitFailure, "That is the plugin's own failure; its file can be tried by itself: CNI_COMMAND=VERSION " +
			ran.Path
	}
	return app.ExitFailure, "If it stays when tried again, report it with this line and the file of " +
		"`fairlead support-bundle --mask`."
}

// explainDocument is explain for what a plugin says: its own hint, how whoever has what was asked for gives it back,
// or else what the code alone says. Ran is nil where no plugin was executed.
func explainDocument(doc *spec.Error, ran *invoke.ExecError) (exit int, hint string) {
	exit, hint = ExplainCode(doc.Code)
	attached, _ := (&attach.Runtime{}).List("")
	own := strings.TrimSpace(doc.Hint + " " + GivesBack(doc.Holder, attached))
	if ran != nil && ran.ContainerID == "" && exit == app.ExitNotFound { // STATUS and GC are about no container
		exit = app.ExitFailure
	}
	switch {
	case own != "":
		return exit, own
	case ran == nil:
	case ran.Command == "ADD" && exit == app.ExitFailure && hint == "":
		hint = reclaimable(ran.Network)
	case ran.Command != "ADD" && ran.Command != "STATUS" && hint == hintUnavailable:
		hint = "That is to be mended first. What is attached goes on."
	}
	return exit, hint
}

// ExplainCode is the exit status for a code of the protocol, and what to do next; empty where the plugin's words are
// all that is known.
func ExplainCode(c spec.Code) (exit int, hint string) {
	switch c {
	case spec.CodeTryAgain:
		return app.ExitTryAgain, "This passes: try again. `fairlead status`, with the network's name, says whether it can serve."
	case spec.CodeUnknown:
		return app.ExitNotFound, "`fairlead ls` lists what is attached."
	case spec.CodeVersion:
		return app.ExitFailure, "Change cniVersion in the network's configuration; `fairlead version NET` says what each " +
			"plugin speaks."
	case spec.CodeUnsupported, spec.CodeConfig, spec.CodeDecode:
		return app.ExitFailure, "Correct the network's configuration; `fairlead net ls` says in which file it is."
	case spec.CodeEnvironment:
		return app.ExitFailure, "Look at the arguments, CNI_ARGS and CAP_ARGS. " + app.HintEnvironment
	case spec.CodeNetns:
		return app.ExitFailure, "Give a network namespace of its own: `ip netns add NAME`, then NAME."
	case spec.CodeUnavailable, spec.CodeLimited:
		return app.ExitFailure, hintUnavailable
	}
	return app.ExitFailure, "" // the plugin's own words are all that is known
}

const hintUnavailable = "The network serves no new attachment until that is mended."
