// Package fleet is the commands about a cluster whose nodes share pools of addresses in etcd: fairlead-agent cluster, which
// fairlead cluster runs.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/fairlead-cni/fairlead/cluster/etcd"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
)

// A call is one call of a command.
type call struct {
	flags  *flag.FlagSet
	stdout io.Writer
	stderr io.Writer
	access *access
	file   string // that join writes
	output string
	warned bool // of the file
}

// A verb is a command.
type verb struct {
	name, operands, does string
	options              string // of the usage line
	least, most          int    // operands
	flags                func(c *call)

	// One of them is set: run, or ask, which is given the cluster of this node.
	run func(ctx context.Context, c *call, operands []string) error
	ask func(ctx context.Context, c *call, s *etcd.Store, v *etcd.View, operands []string) error
}

func verbs() []verb {
	return []verb{initVerb(), joinVerb(), tokenVerb(), membersVerb(), nodesVerb(), poolsVerb(), blocksVerb(), adoptVerb(),
		drainVerb(), forgetVerb(), exportVerb(), readoptVerb()}
}

// errUsage means that a command line is wrong.
var errUsage = errors.New("fairlead cluster -h lists the commands")

// Main runs the command that args name. The status is 0, 1 if it failed, or 2 if the command line is wrong.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := &call{stdout: stdout, stderr: stderr, access: &access{}}
	err := c.run(ctx, args)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	exit := 1
	if errors.Is(err, errUsage) {
		exit = 2
	}
	if c.output == "json" {
		c.stdout = stderr
		_ = c.print(map[string]any{"error": err.Error(), "exit": exit}, nil)
		return exit
	}
	for line := range strings.SplitSeq("fairlead cluster: "+err.Error(), "\n") {
		printf(stderr, "%s\n", line)
	}
	return exit
}

func (c *call) run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want a command: %w", errUsage)
	}
	all := verbs()
	i := slices.IndexFunc(all, func(v verb) bool { return v.name == args[0] })
	if i < 0 {
		return fmt.Errorf("%q is no command: %w", args[0], errUsage)
	}
	v := all[i]
	c.flags = flag.NewFlagSet(v.name, flag.ContinueOnError)
	c.flags.SetOutput(io.Discard)
	c.flags.StringVar(&c.output, "o", "text", "`FORMAT`: text or json")
	c.flags.StringVar(&c.file, "file", etcd.JoinedFile, "`FILE` that says how this node reaches etcd")
	c.access.define(c.flags)
	if v.flags != nil {
		v.flags(c)
	}
	operands, err := c.parse(args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(c.stdout, "%s\n\n  fairlead cluster %s\n\nFlags:\n", v.does, v.usage())
		c.flags.SetOutput(c.stdout)
		c.flags.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%s: %w: %w", v.name, err, errUsage)
	case c.output != "text" && c.output != "json":
		return fmt.Errorf("-o %s: want text or json: %w", c.output, errUsage)
	case len(operands) < v.least || len(operands) > v.most:
		return fmt.Errorf("%s: want fairlead cluster %s: %w", v.amiss(operands), v.usage(), errUsage)
	case v.run != nil:
		return v.run(ctx, c, operands)
	}
	s, view, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	return v.ask(ctx, c, s, view, operands)
}

// usage is how a command is called.
func (v verb) usage() string {
	return strings.Join(strings.Fields(v.name+" "+v.operands+" "+v.options), " ")
}

// amiss says which operand is missing, or one too many.
func (v verb) amiss(operands []string) string {
	if len(operands) > v.most {
		return fmt.Sprintf("%s: %q is one argument too many", v.name, operands[v.most])
	}
	return fmt.Sprintf("%s: %s is missing", v.name, v.operands)
}

// parse takes flags before, between and behind the operands.
func (c *call) parse(args []string) (operands []string, err error) {
	for {
		if err := c.flags.Parse(args); err != nil {
			return nil, err
		}
		if c.flags.NArg() == 0 {
			return operands, nil
		}
		operands, args = append(operands, c.flags.Arg(0)), c.flags.Args()[1:]
	}
}

// print prints an answer: a document, or what text does.
func (c *call) print(doc any, text func(w io.Writer)) error {
	if c.output == "json" {
		e := json.NewEncoder(c.stdout)
		e.SetIndent("", "  ")
		return e.Encode(doc)
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// printf prints a text with data, which it escapes: any node may have written the names in etcd.
func printf(w io.Writer, format string, args ...any) {
	_, _ = io.WriteString(w, string(term.Sprintf(format, args...))) // who reads it may be gone
}

// An access is the flags that say how to reach etcd. What they do not say, is in the file.
type access struct {
	etcd.Joined
	endpoints []string
}

func (a *access) define(flags *flag.FlagSet) {
	etcd.DefineEndpoints(flags, &a.endpoints, "`URL`,… of etcd")
	flags.StringVar(&a.Cluster, "cluster", "", "`NAME` of the cluster (default: fleet)")
	a.Define(flags)
}

// joined returns how to reach etcd.
func (c *call) joined() (etcd.Joined, error) {
	from, err := c.read()
	if errors.Is(err, os.ErrNotExist) && len(c.access.endpoints) > 0 {
		err = nil
	}
	if errors.Is(err, os.ErrNotExist) {
		return from, fmt.Errorf("this node has joined no cluster (%w): say --etcd URL, or use fairlead cluster init or join", err)
	}
	if err != nil {
		return from, err
	}
	return from.With(c.access.Joined, c.access.endpoints), nil
}

// read reads the file, and warns once of keys in it that are not read.
func (c *call) read() (etcd.Joined, error) {
	j, warnings, err := etcd.ReadJoined(c.file)
	for _, text := range warnings {
		if !c.warned {
			printf(c.stderr, "fairlead cluster: warning: %s\n", text)
		}
	}
	c.warned = true
	return j, err
}

// open returns the store, and what it says.
func (c *call) open(ctx context.Context) (*etcd.Store, *etcd.View, error) {
	j, err := c.joined()
	if err != nil {
		return nil, nil, err
	}
	s, err := etcd.Open(j.Access)
	if err != nil {
		return nil, nil, err
	}
	v, err := s.Look(ctx)
	err = j.Access.Unreached(ctx, err)
	if err == nil && v.Config() == nil {
		err = s.NoCluster()
	}
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, v, nil
}
