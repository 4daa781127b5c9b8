package install

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/netconf"
	"github.com/fairlead-cni/fairlead/cli/validate"
	"github.com/fairlead-cni/fairlead/spec"
)

// netFile is a network configuration that is installed with the plugins.
type netFile struct {
	doc  []byte
	to   string // where runtimes search for it
	same bool   // it is there and up to date
	last bool   // it is what this command wrote last
	kept bool   // another one is there, which this command did not write, or which was changed since
}

// readNetFile reads a configuration. It refuses one with which every ADD fails, because a runtime would use it all
// the same.
func readNetFile(file string) (*netFile, error) {
	doc, err := spec.ReadLinked(file, spec.MaxFile)
	if err != nil {
		return nil, err
	}
	if ext := filepath.Ext(file); ext != ".conflist" {
		return nil, app.Usage("--conf %s: want a list, in a file named *.conflist", file)
	}
	var wrong []error
	for _, r := range validate.Examine(file, doc, true).Remarks {
		if r.Severity == validate.Grave {
			wrong = append(wrong, errors.New(r.Problem))
		}
	}
	if len(wrong) > 0 {
		return nil, app.Fail(app.ExitUsage, "`fairlead validate "+file+"` says where.", "--conf %s: %w", file,
			errors.Join(wrong...))
	}
	n := &netFile{doc: doc, to: filepath.Join(netconf.ConfDir(), filepath.Base(file))}
	now, err := spec.ReadLinked(n.to, spec.MaxFile)
	n.same = err == nil && bytes.Equal(now, doc)
	if errors.Is(err, spec.ErrNotPlain) {
		return nil, err
	}
	last, _ := spec.ReadLinked(n.record(), spec.MaxFile)
	n.last = bytes.Equal(last, doc)
	n.kept = err == nil && !n.same && !bytes.Equal(now, last)
	return n, nil
}

// record is the copy of what this command wrote last, by which it knows whether somebody changed the file. Runtimes do
// not read a file of that name.
func (n *netFile) record() string {
	return filepath.Join(filepath.Dir(n.to), "."+filepath.Base(n.to)+".installed")
}

// write puts the file in its place, but keeps what somebody else wrote there. With check it only says what it would do.
func (n *netFile) write(a *app.App, check bool) error {
	switch {
	case n.kept:
		a.Note("%s is kept: it differs from what this command wrote last; remove it, and repeat the command to "+
			"replace it",
			n.to)
		return nil
	case check && !n.same:
		a.Status = app.ExitDrift
		a.Note("%s would be written", n.to)
	}
	switch {
	case check, n.same && n.last:
		return nil
	case n.same:
		return app.ReplaceFile(n.record(), n.doc, 0o644)
	}
	if err := os.MkdirAll(filepath.Dir(n.to), 0o755); err != nil {
		return err
	}
	if err := app.ReplaceFile(n.to, n.doc, 0o644); err != nil {
		return err
	}
	a.Note("%s is written", n.to)
	return app.ReplaceFile(n.record(), n.doc, 0o644)
}

// remove removes the file, unless it was changed.
func (n *netFile) remove(a *app.App) error {
	if !n.same {
		if _, err := os.Lstat(n.to); err == nil {
			a.Note("%s was changed, so it is not removed", n.to)
		}
		return nil
	}
	if err := os.Remove(n.to); err != nil {
		return err
	}
	a.Note("%s is removed", n.to)
	if err := os.Remove(n.record()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
