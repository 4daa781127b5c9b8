package validate

import (
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/spec"
)

// Tried returns what is wrong with a network: missing plugins, errors that this project's plugins find in its
// configuration, and keys they do not know. Plugins of other projects are not asked.
func Tried(n *netconf.Network) (problems []error) {
	for _, err := range n.Missing() {
		text := err.Error()
		if f := (*app.Failure)(nil); errors.As(err, &f) {
			text += ": " + f.Hint
		}
		problems = append(problems, &spec.FileError{File: n.File, Err: fmt.Errorf("network %s: %s", n.Name, text)})
	}
	if !n.AllFairlead() {
		return problems
	}
	src := n.Raw
	if n.File != "" {
		var err error
		if src, err = plainfile.ReadLinked(n.File, plainfile.MaxSize); err != nil {
			return append(problems, err)
		}
	}
	for _, r := range Examine(n.File, src, false).Remarks {
		problems = append(problems, &spec.FileError{File: r.File, Line: r.Line, Column: r.Column,
			Err: fmt.Errorf("network %s: %s", n.Name, r.Problem)})
	}
	return problems
}
