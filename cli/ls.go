package cli

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// A listed is an attachment as ls prints it.
type listed struct {
	attached
	Name      string         `json:"name,omitempty"` // NAMESPACE/POD, or podman's name
	State     string         `json:"state"`          // alive, gone, unknown
	Addresses []netip.Prefix `json:"addresses"`
}

// lsFlags are the filters of ls.
type lsFlags struct {
	container, state string
	all              bool
}

func (a *app) lsCommand() *cobra.Command {
	var f lsFlags
	c := &cobra.Command{
		Use: "ls [NET]", GroupID: "look", Args: operands("[NET]"),
		Short: "List attachments, made by any runtime",
		Long: `List the attachments that the cache of this host remembers, of all networks or of NET: those of fairlead,
and those of containerd, podman and every other program that uses the reference library. The state of an attachment is

  alive    its network namespace exists
  gone     its network namespace no longer exists, or another one has its name: fairlead gc removes what it left
  unknown  the program that attached it has not recorded the namespace, or fairlead cannot see it, as in a container
           without the host's mounts

NAME is a pod's NAMESPACE/NAME, or podman's name of the container. Long IDs are cut to 12 digits; all commands that take
a container accept these. The attachments of ` + loopbackNetwork + `, with which containerd sets up lo of each pod, are
only counted, unless NET is that network or --all is given. The document of -o json has all attachments and whole IDs.`,
		Example: `  fairlead ls lan --state gone
  fairlead ls --container default/web-0`,
		RunE: func(c *cobra.Command, args []string) error { return a.ls(strings.Join(args, ""), f) },

		ValidArgsFunction: completeNetworks,
	}
	a.filterFlags(c, &f)
	return c
}

// filterFlags gives a command the filters of ls.
func (a *app) filterFlags(c *cobra.Command, f *lsFlags) {
	c.Flags().StringVar(&f.container, "container", "",
		"only this `CONTAINER`: pod, name, ID or its beginning, network namespace")
	c.Flags().StringVar(&f.state, "state", "", "only attachments in this `STATE`: alive, gone or unknown")
	c.Flags().BoolVar(&f.all, "all", false, "also the attachments of "+loopbackNetwork)
	c.RegisterFlagCompletionFunc("container", completeContainers)
	c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{alive, gone, unknown},
		cobra.ShellCompDirectiveNoFileComp))
}

// selected are the attachments of a network, or of all, that pass the filters, and what is wrong with the cache.
func (a *app) selected(network string, f lsFlags) (list []attach.Cached, problems []error, err error) {
	if !slices.Contains([]string{"", alive, gone, unknown}, f.state) {
		return nil, nil, usage("--state %q: want alive, gone or unknown", f.state)
	}
	if err := a.known(network); err != nil {
		return nil, nil, err
	}
	list, problems = (&attach.Runtime{}).List(network)
	if err := unseen(problems); err != nil {
		return nil, nil, err
	}
	if f.container != "" {
		if list = find(f.container, list); len(list) == 0 {
			return nil, nil, notAttached(f.container)
		}
	}
	return slices.DeleteFunc(list, func(c attach.Cached) bool {
		return f.state != "" && f.state != describe(c).State
	}), problems, nil
}

func (a *app) ls(network string, f lsFlags) error {
	list, problems, err := a.selected(network, f)
	if err != nil {
		return err
	}
	doc := struct {
		Attachments []listed `json:"attachments"`
		Problems    []string `json:"problems,omitempty"`
	}{Attachments: []listed{}}
	for _, c := range list {
		doc.Attachments = append(doc.Attachments, describe(c))
	}
	for _, p := range problems {
		doc.Problems = append(doc.Problems, p.Error())
	}
	if len(problems) > 0 {
		a.status = exitFailure
	}
	if a.json() {
		return printJSON(a.stdout, doc)
	}
	rows := doc.Attachments
	if network == "" && !f.all {
		rows = slices.DeleteFunc(slices.Clone(rows), func(l listed) bool { return l.Network == loopbackNetwork })
	}
	a.printListed(rows)
	switch folded := len(doc.Attachments) - len(rows); {
	case folded > 0:
		a.note("%d of network %s are not listed; --all lists them, too", folded, loopbackNetwork)
	case len(rows) > 0, len(problems) > 0: // what cannot be read may well be attached
	case f.state != "":
		a.print("nothing that is attached is %s\n", f.state)
	default:
		a.print("nothing is attached\n")
	}
	for _, p := range doc.Problems {
		a.note("%s", p)
	}
	return nil
}

// printListed prints attachments as a table, with a column for names where one has a name.
func (a *app) printListed(list []listed) {
	if len(list) == 0 {
		return
	}
	s := a.style(a.stdout)
	t := table{{"NETWORK", "CONTAINER", "NAME", "INTERFACE", "ADDRESSES", "NETNS", "STATE"}}
	for _, l := range list {
		state := s.good(l.State)
		if l.State != alive {
			state = s.doubt(l.State)
		}
		var addrs []string
		for _, p := range l.Addresses {
			addrs = append(addrs, p.String())
		}
		t = append(t, []any{l.Network, shortID(l.ContainerID), l.Name, l.IfName, strings.Join(addrs, " "), l.Netns, state})
	}
	if !slices.ContainsFunc(list, func(l listed) bool { return l.Name != "" }) {
		for i, row := range t {
			t[i] = slices.Delete(row, 2, 3)
		}
	}
	t.print(a.stdout, s)
}

// unseen is the problem of a cache that cannot be read at all: nothing is known of what is attached.
func unseen(problems []error) error {
	for _, p := range problems {
		if errors.Is(p, attach.ErrUnseen) {
			return p
		}
	}
	return nil
}

const (
	alive   = "alive"
	gone    = "gone"
	unknown = "unknown"
)

func describe(c attach.Cached) listed {
	l := listed{attached{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName, Netns: c.Netns}, nameOf(c), alive, []netip.Prefix{}}
	switch {
	case c.Netns == "":
		l.State = unknown
	case isGone(c):
		l.State = gone
	case c.Hidden():
		l.State = unknown
	}
	if c.Result != nil {
		for _, ip := range c.Result.IPs {
			if own(c, ip) {
				l.Addresses = append(l.Addresses, ip.Address)
			}
		}
	}
	return l
}

// isGone reports whether the namespace of an attachment is gone: no command of this program is of another opinion.
func isGone(c attach.Cached) bool {
	return (&attach.Runtime{Vanished: vanished}).Gone(&c)
}

// vanished is what the plugins of ours have written down of the namespace.
func vanished(c *attach.Cached) bool { return sdk.Vanished(c.Owner(), c.Netns) != nil }

// own reports whether an address of c's result is one of its interface, and not of a link on the host.
func own(c attach.Cached, ip spec.IP) bool {
	if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(c.Result.Interfaces) {
		return true
	}
	return c.Result.Interfaces[*ip.Interface].Name == c.IfName
}

// A netInfo is a network as net ls prints it.
type netInfo struct {
	Name       string        `json:"name"`
	CNIVersion spec.Version  `json:"cniVersion"`
	Plugins    []string      `json:"plugins"`
	File       string        `json:"file"`     // empty: built in
	Attached   *int          `json:"attached"` // null where that cannot be seen
	Warnings   []fileProblem `json:"warnings,omitempty"`
}

// A fileProblem is what is wrong with a file, and where.
type fileProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Problem string `json:"problem"`
}

func (p fileProblem) String() string {
	if p.File == "" {
		return p.Problem
	}
	return (&spec.FileError{File: p.File, Line: p.Line, Column: p.Column, Err: errors.New(p.Problem)}).Error()
}

func problem(err error) fileProblem {
	var f *spec.FileError
	if errors.As(err, &f) {
		return fileProblem{f.File, f.Line, f.Column, f.Err.Error()}
	}
	return fileProblem{Problem: err.Error()}
}

func (a *app) netCommand() *cobra.Command {
	net := &cobra.Command{Use: "net", GroupID: "look", Short: "List, write and rewrite network configurations"}
	net.AddCommand(a.chainCommand(), a.newCommand())
	net.AddCommand(&cobra.Command{
		Use: "ls", Args: operands(""),
		Short: "List the networks, the file that defines each, and what is wrong with the files",
		RunE: func(c *cobra.Command, args []string) error {
			lists, problems := spec.LoadDir(confDir())
			doc := struct {
				Networks []netInfo     `json:"networks"`
				Problems []fileProblem `json:"problems,omitempty"`
			}{Networks: []netInfo{}}
			if !slices.ContainsFunc(lists, func(l *spec.List) bool { return l.Name == defaultNetwork }) {
				l, err := spec.ParseList(defaultList(ipv6Here()))
				if err != nil {
					return err
				}
				lists = append(lists, l)
			}
			cached, wrong := (&attach.Runtime{}).List("")
			blind := unseen(wrong)
			said, all := map[[2]string]bool{}, wires(lists)
			for _, l := range lists {
				i := netInfo{Name: l.Name, CNIVersion: l.CNIVersion, File: l.File, Plugins: []string{}}
				for _, p := range l.Plugins {
					i.Plugins = append(i.Plugins, p.Type)
				}
				if n := 0; blind == nil {
					for _, c := range cached {
						if c.Network == l.Name {
							n++
						}
					}
					i.Attached = &n
				}
				if n := (&network{List: l}); l.File != "" { // what is built in is as it should be, whatever CNI_PATH has
					for _, w := range slices.Concat(n.warnings(), n.tried(), a.unspoken(n), overlaps(l, all, said)) {
						i.Warnings = append(i.Warnings, problem(w))
					}
				}
				doc.Networks = append(doc.Networks, i)
			}
			for _, p := range problems {
				doc.Problems = append(doc.Problems, problem(p))
				a.status = exitFailure
			}
			if a.json() {
				return printJSON(a.stdout, doc)
			}
			t := table{{"NETWORK", "CNI", "PLUGINS", "ATTACHED", "FILE"}}
			for i, n := range doc.Networks {
				file := "built in"
				if n.File != "" {
					file = filepath.Clean(n.File)
				}
				attached := unknown
				if n.Attached != nil {
					attached = strconv.Itoa(*n.Attached)
				}
				t = append(t, []any{n.Name, n.CNIVersion, (&network{List: lists[i]}).types(), attached, file})
			}
			t.print(a.stdout, a.style(a.stdout))
			if blind != nil {
				a.note("%v", blind)
			}
			for _, n := range doc.Networks {
				for _, w := range n.Warnings {
					a.note("warning: %v", w)
				}
			}
			for _, p := range problems {
				a.note("%s", lines(p))
			}
			return nil
		},
	})
	return net
}
