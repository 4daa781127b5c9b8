// Package target is the attachment that a command with NET and NETNS is about: flags and environment, the
// configuration it was made with, and its plan. It prints nothing.
package target

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/extra"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// Typed returns the operands and flags that name the attachment on a command line.
func (t *Target) Typed(args []string) string {
	where := Place(args[0], args[1], t.IfName)
	if t.ContainerID != attached.ContainerID(t.Netns) {
		where += " --container-id " + t.ContainerID
	}
	return where
}

// Place returns network, namespace and interface as operands of a command.
func Place(network, netns, ifname string) string {
	if ifname != "eth0" {
		return network + " " + netns + " -i " + ifname
	}
	return network + " " + netns
}

// Target is the attachment that a command with NET and NETNS is about.
type Target struct {
	*netconf.Network
	attach.Attachment
	Runtime *attach.Runtime
	Notes   []noted // notes of the plan functions about the configuration
	Offline bool    // do not look at leases

	unmet []string // what the host lacks, by the plan
}

// noted is a plugin's note about its configuration.
type noted struct {
	Plugin string
	extra.Note
}

// Flags are the flags that name an attachment besides NET and NETNS.
type Flags struct{ ifName, containerID string }

// Register adds the flags to a command.
func (f *Flags) Register(c *cobra.Command) {
	c.Flags().StringVarP(&f.ifName, "ifname", "i", "",
		"`NAME` of the interface in the namespace (default $CNI_IFNAME, else eth0)")
	c.Flags().StringVar(&f.containerID, "container-id", "",
		"container `ID` (default: cnitool's, made from the path of NETNS)")
}

// New reads NET, NETNS, the flags and the environment.
func New(a *app.App, f Flags, args []string) (*Target, error) {
	n, err := netconf.FindOrFile(a, args[0])
	if err != nil {
		return nil, err
	}
	t := &Target{Network: n}
	if t.Netns, err = attached.NetnsPath(args[1]); err != nil {
		return nil, err
	}
	t.IfName = cmp.Or(f.ifName, os.Getenv("CNI_IFNAME"), "eth0")
	if err := spec.ValidIfName(t.IfName); err != nil {
		return nil, app.Usage("interface %q: %w", t.IfName, err)
	}
	t.ContainerID = cmp.Or(f.containerID, attached.ContainerID(t.Netns))
	if err := spec.ValidContainerID(t.ContainerID); err != nil {
		return nil, app.Usage("--container-id %q: %w", t.ContainerID, err)
	}
	if s := os.Getenv("CNI_ARGS"); s != "" {
		if t.Args, err = spec.ParseArgs(s); err != nil {
			return nil, app.Fail(app.ExitUsage, app.HintEnvironment, "%w", err)
		}
	}
	if s := os.Getenv("CAP_ARGS"); s != "" {
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber() // plugins get numbers unchanged
		if err := cmp.Or(json.Unmarshal([]byte(s), &t.Capabilities), d.Decode(&t.Capabilities)); err != nil {
			return nil, app.Fail(app.ExitUsage, app.HintEnvironment,
				"CAP_ARGS: want a JSON object, such as {\"ips\": [\"10.1.0.5\"]}: %w", err)
		}
	}
	return t, nil
}

// Undeclared warns of capability arguments that no plugin declares, and so none gets.
func (t *Target) Undeclared() (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(t.Capabilities)) {
		if !slices.ContainsFunc(t.Plugins, func(p *spec.Conf) bool { return p.Capabilities[name] }) {
			notes = append(notes, fmt.Sprintf(`CAP_ARGS: %s: no plugin of %s has "capabilities": {%q: true}, so no plugin gets it`,
				name, t.Name, name))
		}
	}
	return notes
}

// Ready is New. It also finds the plugins and, if there is set, requires the namespace to exist.
func Ready(a *app.App, f Flags, args []string, there bool) (*Target, error) {
	t, err := New(a, f, args)
	if err != nil {
		return nil, err
	}
	if there {
		if err := t.there(); err != nil {
			return nil, err
		}
	}
	if t.Runtime, err = netconf.Runtime(a, t.Network); err == nil && f.containerID == "" {
		t.recognise()
	}
	return t, err
}

// recognise uses the container ID of an existing attachment of the same namespace and interface, made with another
// spelling of the path or by another program. Two attachments of one interface would undo each other.
func (t *Target) recognise() {
	list, _ := t.Runtime.List(t.Name)
	id := ""
	for _, c := range list {
		switch {
		case c.IfName != t.IfName:
		case c.ContainerID == t.ContainerID:
			return
		case c.Netns != "" && attached.SamePath(c.Netns, t.Netns):
			id = c.ContainerID
		}
	}
	t.ContainerID = cmp.Or(id, t.ContainerID)
}

// there fails if the namespace of an ADD or CHECK does not exist.
func (t *Target) there() error {
	err := attached.IsNetns(t.Netns)
	if errors.Is(err, fs.ErrNotExist) {
		return app.Fail(app.ExitNotFound, "`ip netns` lists named ones; `ip netns add NAME` creates one.", "%w", err)
	}
	return err
}

// Document returns the names of the attachment for -o json.
func (t *Target) Document() attached.Key {
	return attached.KeyOf(t.Owner(), t.Netns)
}

// FindRuntime finds a network with find, and returns it with the Runtime for its plugins.
func FindRuntime(a *app.App, find func(*app.App, string) (*netconf.Network, error),
	arg string) (*netconf.Network, *attach.Runtime, error) {
	n, err := find(a, arg)
	if err != nil {
		return nil, nil, err
	}
	rt, err := netconf.Runtime(a, n)
	return n, rt, err
}

// CompleteTarget completes NET and NETNS, for a shell.
func CompleteTarget(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		names, _ := netconf.CompleteNetworks(c, args, word)
		return names, cobra.ShellCompDirectiveDefault // or a file
	}
	entries, _ := os.ReadDir(attached.NetnsDir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, cobra.ShellCompDirectiveDefault
}
