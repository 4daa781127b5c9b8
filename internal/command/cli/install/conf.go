package install

import (
	"errors"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/validate"
	"github.com/fairlead-cni/fairlead/internal/command/install"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
)

// readNetFile reads a configuration. It refuses one with which every ADD fails, because a runtime would use it all
// the same.
func readNetFile(file string) (*install.NetFile, error) {
	doc, err := plainfile.ReadLinked(file, plainfile.MaxSize)
	if err != nil {
		return nil, err
	}
	if ext := filepath.Ext(file); ext != ".conflist" {
		return nil, app.Usage("--conf %s: want a list, in a file named *.conflist", file)
	}
	var wrong []error
	for _, r := range validate.Examine(file, doc, true).Remarks {
		if r.Severity == validate.Error {
			wrong = append(wrong, errors.New(r.Problem))
		}
	}
	if len(wrong) > 0 {
		return nil, app.Fail(app.ExitUsage, "`fairlead validate "+file+"` says where.", "--conf %s: %w", file,
			errors.Join(wrong...))
	}
	return install.OpenNetFile(filepath.Join(netconf.ConfDir(), filepath.Base(file)), doc)
}

// writeNetFile puts the file in its place, but keeps what another program wrote there. With check it only says what it
// would do.
func writeNetFile(a *app.App, n *install.NetFile, check bool) error {
	if n.Foreign() != nil {
		a.Note("%s is kept: it differs from what this command wrote last; remove it, and repeat the command to "+
			"replace it", n.Path)
		return nil
	}
	if check {
		if !n.Same {
			a.Status = app.ExitFault
			a.Note("%s would be written", n.Path)
		}
		return nil
	}
	written, err := n.Write()
	if written {
		a.Note("%s is written", n.Path)
	}
	return err
}

// removeNetFile removes the file, unless it was changed.
func removeNetFile(a *app.App, n *install.NetFile) error {
	removed, err := n.Remove()
	if errors.As(err, new(*install.ForeignError)) {
		a.Note("%s was changed, so it is not removed", n.Path)
		return nil
	}
	if removed {
		a.Note("%s is removed", n.Path)
	}
	return err
}
