package cli

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

func (a *app) validateCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "validate [FILE|DIR]", GroupID: "look", Args: operands("[FILE|DIR]"),
		Short: "Check network configurations, without access to the host",
		Long: `Check a network configuration, or all of a directory (default: $NETCONFPATH, else /etc/cni/net.d). Print each
problem on a line:

  FILE:LINE:COLUMN: an error
  FILE:LINE:COLUMN: warning: what is allowed, and may not be meant

The exit status is 1 if there is an error, 0 if there are only warnings. FILE may be - for the standard input, or the
name of a network.

The command needs no privilege and does not look at the host: it asks fairlead's plugins what they would make of the
file. Of the plugins of other projects it checks only the keys that the protocol defines. A key that a plugin of
fairlead does not know is an error here, although ADD only warns of it. Use "fairlead plan" and "fairlead status" for
problems of the host, such as a master that does not exist.`,
		RunE: func(c *cobra.Command, args []string) error {
			remarks, err := a.validate(slices.Concat(args, []string{confDir()})[0])
			if err != nil {
				return err
			}
			for _, r := range remarks {
				if r.Severity == grave {
					a.status = exitFailure
				}
			}
			if a.json() {
				return printJSON(a.stdout, struct {
					OK       bool     `json:"ok"`
					Problems []remark `json:"problems"`
				}{a.status == exitOK, remarks})
			}
			for _, r := range remarks {
				r.Line, r.Column = max(r.Line, 1), max(r.Column, 1) // for who parses it
				if r.Severity == mild {
					r.Problem = "warning: " + r.Problem
				}
				a.print("%s\n", printable(r.String()))
			}
			return nil
		},
	}
	return c
}

// validate examines a file, or those of a directory.
func (a *app) validate(arg string) ([]remark, error) {
	remarks := []remark{}
	if arg == "-" {
		src, err := io.ReadAll(io.LimitReader(a.stdin, spec.MaxFile))
		if err != nil {
			return nil, err
		}
		return append(remarks, examine(arg, src, true).remarks...), nil
	}
	st, err := os.Stat(arg)
	if l, lerr := spec.Load(confDir(), arg); errors.Is(err, fs.ErrNotExist) && lerr == nil {
		arg = l.File
	} else if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(exitNotFound, "Give the path of a file or of a directory, or the name of a network; "+
			"`fairlead net ls` lists the networks.", "%s: no such file or directory, and no such network", arg)
	} else if err != nil {
		return nil, err
	}
	if st == nil || !st.IsDir() {
		return append(remarks, examined(arg).remarks...), nil
	}
	files, err := os.ReadDir(arg)
	if err != nil {
		return nil, err
	}
	var lists []*spec.List
	for _, f := range files {
		if ext := filepath.Ext(f.Name()); f.IsDir() || !slices.Contains([]string{".conflist", ".conf", ".json"}, ext) {
			continue
		}
		e := examined(filepath.Join(arg, f.Name()))
		remarks = append(remarks, e.remarks...)
		if e.list != nil {
			lists = append(lists, e.list)
		}
	}
	return append(remarks, among(arg, lists)...), nil
}

// examined examines a file.
func examined(file string) *examination {
	src, err := spec.ReadLinked(file, spec.MaxFile)
	if err != nil {
		e := &examination{}
		e.say(file, grave, err)
		return e
	}
	return examine(file, src, true)
}

// among is what the files of a directory do to each other.
func among(dir string, lists []*spec.List) (remarks []remark) {
	e := &examination{}
	loaded, _ := spec.LoadDir(dir)
	for _, l := range loaded {
		for _, w := range l.Warnings {
			if p := problem(w); cmp.Or(p.File, l.File) != l.File && p.Line == 0 {
				e.say(p.File, grave, w)
			}
		}
	}
	said, all := map[[2]string]bool{}, wires(lists)
	for _, l := range lists {
		for _, err := range overlapping(l, all, said) {
			e.say(l.File, mild, err)
		}
	}
	return e.remarks
}
