package cli

import (
	"bytes"
	"cmp"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// target is what a verb in the manner of cnitool is about.
type target struct {
	*network
	attach.Attachment
	runtime *attach.Runtime
	notes   []noted // what plan functions have to say of the configuration
	offline bool    // leases are not looked at
}

// A noted is what a plugin says of its configuration.
type noted struct {
	plugin string
	sdk.Note
}

// attachmentFlags are the flags that name an attachment beside NET and NETNS.
type attachmentFlags struct{ ifName, containerID string }

func (f *attachmentFlags) register(c *cobra.Command) {
	c.Flags().StringVarP(&f.ifName, "ifname", "i", "",
		"`NAME` of the interface in the namespace (default $CNI_IFNAME, else eth0)")
	c.Flags().StringVar(&f.containerID, "container-id", "",
		"container `ID` (default: cnitool's, made from the path of NETNS)")
}

// containerID is the ID that cnitool makes from the absolute path of a network namespace.
func containerID(path string) string {
	sum := sha512.Sum512([]byte(path))
	return "cnitool-" + hex.EncodeToString(sum[:10])
}

// target reads NET, NETNS, the flags and the environment.
func (a *app) target(f attachmentFlags, args []string) (*target, error) {
	n, err := a.networkOrFile(args[0])
	if err != nil {
		return nil, err
	}
	t := &target{network: n}
	if t.Netns, err = netnsPath(args[1]); err != nil {
		return nil, err
	}
	t.IfName = cmp.Or(f.ifName, os.Getenv("CNI_IFNAME"), "eth0")
	if err := spec.ValidIfName(t.IfName); err != nil {
		return nil, usage("interface %q: %w", t.IfName, err)
	}
	t.ContainerID = cmp.Or(f.containerID, containerID(t.Netns))
	if err := spec.ValidContainerID(t.ContainerID); err != nil {
		return nil, usage("--container-id %q: %w", t.ContainerID, err)
	}
	if s := os.Getenv("CNI_ARGS"); s != "" {
		if t.Args, err = spec.ParseArgs(s); err != nil {
			return nil, fail(exitUsage, hintEnvironment, "%w", err)
		}
	}
	if s := os.Getenv("CAP_ARGS"); s != "" {
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber() // they go to plugins as they came
		if err := d.Decode(&t.Capabilities); err != nil {
			return nil, fail(exitUsage, hintEnvironment, "CAP_ARGS: want a JSON object, such as {\"ips\": [\"10.1.0.5\"]}: %w",
				err)
		}
	}
	return t, nil
}

// undeclared says which capabilities are offered and passed to no plugin.
func (t *target) undeclared() (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(t.Capabilities)) {
		if !slices.ContainsFunc(t.Plugins, func(p *spec.Conf) bool { return p.Capabilities[name] }) {
			notes = append(notes, fmt.Sprintf(`CAP_ARGS: %s: no plugin of %s has "capabilities": {%q: true}, so none is told`,
				name, t.Name, name))
		}
	}
	return notes
}

// ready also finds the plugins, and the namespace where it has to be there.
func (a *app) ready(f attachmentFlags, args []string, there bool) (*target, error) {
	t, err := a.target(f, args)
	if err != nil {
		return nil, err
	}
	if there {
		if err := t.there(); err != nil {
			return nil, err
		}
	}
	if t.runtime, err = a.runtime(t.network); err == nil && f.containerID == "" {
		t.recognise()
	}
	return t, err
}

// recognise takes over the container ID of what is attached already by another spelling of the namespace's
// path, or by another program: two attachments of one interface would undo each other.
func (t *target) recognise() {
	list, _ := t.runtime.List(t.Name)
	id := ""
	for _, c := range list {
		switch {
		case c.IfName != t.IfName:
		case c.ContainerID == t.ContainerID:
			return
		case c.Netns != "" && samePath(c.Netns, t.Netns):
			id = c.ContainerID
		}
	}
	t.ContainerID = cmp.Or(id, t.ContainerID)
}

// samePath reports whether two paths lead to one file, or did when it was there.
func samePath(a, b string) bool {
	x, xerr := os.Stat(a)
	y, yerr := os.Stat(b)
	if xerr == nil && yerr == nil {
		return os.SameFile(x, y)
	}
	return plain(a) == plain(b)
}

// plain is a path without the links on the way to its last element.
func plain(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, filepath.Base(path))
}

// there says that the namespace of ADD and CHECK does not exist.
func (t *target) there() error {
	err := isNetns(t.Netns)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(exitNotFound, "`ip netns` lists those with a name; `ip netns add NAME` makes one.", "%w", err)
	}
	return err
}

// An attached is an attachment as -o json prints it.
type attached struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
	Netns       string `json:"netns"`
}

func (t *target) document() attached {
	return attached{Network: t.Name, ContainerID: t.ContainerID, IfName: t.IfName, Netns: t.Netns}
}

func (a *app) addCommand() *cobra.Command {
	var f attachmentFlags
	c := &cobra.Command{
		Use: "add NET NETNS", GroupID: "attach", Args: operands("NET NETNS"),
		Short: "Attach a network namespace to a network, and print the result",
		RunE: func(c *cobra.Command, args []string) error {
			t, err := a.ready(f, args, true)
			if err != nil {
				return err
			}
			for _, note := range t.undeclared() {
				a.note("warning: %s", note)
			}
			a.warnOfOverlaps(t.network, t.runtime)
			res, err := t.runtime.Add(a.interruptible(), t.List, t.Attachment)
			if err != nil {
				return err
			}
			b, err := res.Encode(res.CNIVersion)
			if err != nil {
				return err
			}
			var out bytes.Buffer
			if err := json.Indent(&out, bytes.TrimSpace(b), "", "    "); err != nil {
				return err
			}
			_, err = a.stdout.Write(append(printableJSON(out.Bytes()), '\n'))
			return err
		},
	}
	f.register(c)
	c.ValidArgsFunction = completeTarget
	return c
}

func (a *app) delCommand() *cobra.Command {
	var f attachmentFlags
	var goOn bool
	c := &cobra.Command{
		Use: "del NET NETNS", GroupID: "attach", Args: operands("NET NETNS"),
		Short: "Detach a network namespace; succeeds if it is detached already",
		RunE: func(c *cobra.Command, args []string) error {
			a.orphans = true
			t, err := a.ready(f, args, false)
			if err != nil {
				return err
			}
			if err := a.asAttached(t); err != nil {
				return err
			}
			var options []attach.Option
			if goOn {
				options = append(options, attach.Continue())
			}
			if err := t.runtime.Del(a.interruptible(), t.List, t.Attachment, options...); err != nil {
				return t.stopped(err, args, goOn)
			}
			if a.json() {
				return printJSON(a.stdout, t.document())
			}
			return nil
		},
	}
	f.register(c)
	c.Flags().BoolVar(&goOn, "continue", false,
		"continue if a plugin fails, so that the other plugins release what they hold")
	c.ValidArgsFunction = completeTarget
	return c
}

// stopped adds to the error of a DEL what it has come to.
func (t *target) stopped(err error, args []string, goOn bool) error {
	exit, hint := explain(err)
	was, ran := t.former(), new(invoke.ExecError)
	switch failed := errors.As(err, &ran); {
	case was == nil || !failed && !errors.Is(err, invoke.ErrNotFound):
		return err
	case len(was.Left) > 0:
		hint += fmt.Sprintf(" The interface and what the other plugins held are gone; what %s holds is left. `fairlead "+
			"del %s` finishes it, once the plugin is there and works.", strings.Join(was.Left, ", "), t.typed(args))
	case goOn || len(t.Plugins) == 1 || failed && ran.Type == t.Plugins[0].Type: // DEL asks that one last
		return err
	default:
		hint += fmt.Sprintf(" `fairlead del %s --continue` goes on past it, so that the others give back what they hold.",
			t.typed(args))
	}
	return fail(exit, strings.TrimSpace(hint), "%w", err)
}

// networkAndRuntime finds a network, by find, and what runs its plugins.
func (a *app) networkAndRuntime(find func(*app, string) (*network, error), arg string) (*network, *attach.Runtime, error) {
	n, err := find(a, arg)
	if err != nil {
		return nil, nil, err
	}
	rt, err := a.runtime(n)
	return n, rt, err
}

// completeTarget completes NET and NETNS.
func completeTarget(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		names, _ := completeNetworks(c, args, word)
		return names, cobra.ShellCompDirectiveDefault // or a file
	}
	entries, _ := os.ReadDir(netnsDir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, cobra.ShellCompDirectiveDefault
}
