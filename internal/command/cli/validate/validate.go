// Package validate examines files of network configurations: fairlead validate. Also net new, net ls, status and
// install use it. It runs no plugin of other projects and changes nothing.
package validate

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/plainfile"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// Command is `fairlead validate`.
func Command(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use: "validate [FILE|DIR]", GroupID: "look", Args: app.Operands("[FILE|DIR]"),
		Short: "Check network configurations, without access to the host",
		Long: `Check a network configuration, or all of a directory (default: $NETCONFPATH, else /etc/cni/net.d). Print each
problem on a line:

  FILE:LINE:COLUMN: an error
  FILE:LINE:COLUMN: warning: what is allowed, and may not be meant

The exit status is 1 if there is an error, 0 if there are only warnings. FILE may be - for the standard input, or the
name of a network.

The command needs no privilege and does not look at the host: it asks fairlead's plugins what they would make of the
file. Of the plugins of other projects it checks only the keys that the protocol defines, and a note on the standard
error names them. A key that a plugin of
fairlead does not know is an error here, although ADD only warns of it. Use "fairlead plan" and "fairlead status" for
problems of the host, such as a master that does not exist.`,
		RunE: func(c *cobra.Command, args []string) error {
			remarks, others, err := validate(a, slices.Concat(args, []string{netconf.ConfDir()})[0])
			if err != nil {
				return err
			}
			for _, r := range remarks {
				if r.Severity == Error {
					a.Status = app.ExitFailure
				}
			}
			if a.JSON() {
				return a.PrintJSON(struct {
					OK       bool     `json:"ok"`
					Problems []remark `json:"problems"`
					Others   []string `json:"notExamined,omitempty"`
				}{a.Status == app.ExitOK, remarks, others})
			}
			for _, r := range remarks {
				r.Line, r.Column = max(r.Line, 1), max(r.Column, 1) // for programs that parse the line
				if r.Severity == warning {
					r.Problem = "warning: " + r.Problem
				}
				a.Print("%s\n", term.Printable(r.String()))
			}
			if len(others) > 0 {
				a.Note("not a plugin of fairlead, so its own keys are not checked: %s", strings.Join(others, ", "))
			}
			return nil
		},
	}
	return c
}

// validate examines a file, or those of a directory. Others are the types of plugins whose keys are not known.
func validate(a *app.App, arg string) (remarks []remark, others []string, err error) {
	remarks = []remark{}
	take := func(e *examination) {
		remarks = append(remarks, e.Remarks...)
		others = append(others, e.others...)
		slices.Sort(others)
		others = slices.Compact(others)
	}
	if arg == "-" {
		src, err := io.ReadAll(io.LimitReader(a.Stdin, plainfile.MaxSize))
		if err != nil {
			return nil, nil, err
		}
		take(Examine(arg, src, true))
		return remarks, others, nil
	}
	st, err := os.Stat(arg)
	if l, lerr := spec.Load(netconf.ConfDir(), arg); errors.Is(err, fs.ErrNotExist) && lerr == nil {
		arg = l.File
	} else if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, app.Fail(app.ExitNotFound,
			"Give the path of a file or of a directory, or the name of a network; "+
				"`fairlead net ls` lists the networks.", "%s: no such file or directory, and no such network", arg)
	} else if err != nil {
		return nil, nil, err
	}
	if st == nil || !st.IsDir() {
		take(examined(arg))
		return remarks, others, nil
	}
	files, err := os.ReadDir(arg)
	if err != nil {
		return nil, nil, err
	}
	var lists []*spec.List
	for _, f := range files {
		if ext := filepath.Ext(f.Name()); f.IsDir() || !slices.Contains([]string{".conflist", ".conf", ".json"}, ext) {
			continue
		}
		e := examined(filepath.Join(arg, f.Name()))
		take(e)
		if e.list != nil {
			lists = append(lists, e.list)
		}
	}
	return append(remarks, among(arg, lists)...), others, nil
}

// examined examines a file.
func examined(file string) *examination {
	src, err := plainfile.ReadLinked(file, plainfile.MaxSize)
	if err != nil {
		e := &examination{}
		e.say(file, Error, err)
		return e
	}
	return Examine(file, src, true)
}

// among returns the conflicts between files of a directory.
func among(dir string, lists []*spec.List) (remarks []remark) {
	e := &examination{}
	loaded, _ := spec.LoadDir(dir)
	for _, l := range loaded {
		for _, w := range l.Warnings {
			if p := netconf.ProblemOf(w); cmp.Or(p.File, l.File) != l.File && p.Line == 0 {
				e.say(p.File, Error, w)
			}
		}
	}
	said, all := map[[2]string]bool{}, netconf.Wires(lists)
	for _, l := range lists {
		for _, err := range netconf.Overlapping(l, all, said) {
			e.say(l.File, warning, err)
		}
	}
	return e.Remarks
}
