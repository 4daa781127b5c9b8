package advice

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/spec"
)

// Failure is an error as -o json prints it.
type Failure struct {
	Error string    `json:"error"`
	Hint  string    `json:"hint,omitempty"`
	Code  spec.Code `json:"code,omitempty"` // of the protocol
	Exit  int       `json:"exit"`
	Left  bool      `json:"left,omitempty"` // of an attachment, which DEL has to remove
}

// Report prints err and its hint on stderr, and returns the exit status.
func Report(a *app.App, err error) int {
	exit, hint := Explain(err)
	if exit == app.ExitUsage {
		hint = cmp.Or(hint, "`"+a.Doing+" --help` describes its arguments.")
	}
	if a.JSON() {
		r := Failure{Error: err.Error(), Hint: hint, Exit: exit}
		var doc *spec.Error
		if errors.As(err, &doc) {
			r.Code = doc.Code
		}
		var partial interface{ Left() bool }
		r.Left = errors.As(err, &partial) && partial.Left()
		term.PrintJSON(a.Stderr, r)
		return exit
	}
	s := a.Style(a.Stderr)
	fmt.Fprintln(a.Stderr, s.Bad("fairlead:")+" "+term.Lines(errors.New(attached.Named(err.Error()))))
	if hint != "" {
		fmt.Fprintln(a.Stderr, "  "+term.Printable(hint))
	}
	return exit
}
