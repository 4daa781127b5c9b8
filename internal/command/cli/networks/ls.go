// Package networks is fairlead net: it lists and shows networks, writes and removes their files, and rewrites lists as
// a chain and back.
// Package netconf finds networks.
package networks

import (
	"path/filepath"
	"slices"
	"strconv"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/command/cli/validate"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// netInfo is a network in the answer of net ls.
type netInfo struct {
	Name       string                `json:"name"`
	CNIVersion spec.Version          `json:"cniVersion"`
	Plugins    []string              `json:"plugins"`
	File       string                `json:"file"`                 // empty: built in, or none
	Remembered bool                  `json:"remembered,omitempty"` // only the cache has the network, no file
	Attached   *int                  `json:"attached"`             // null if it cannot be read
	Warnings   []netconf.FileProblem `json:"warnings,omitempty"`
}

// Command is `fairlead net`.
func Command(a *app.App) *cobra.Command {
	net := &cobra.Command{Use: "net", GroupID: "look", Short: "List, show, write and remove network configurations"}
	net.AddCommand(chainCommand(a), newCommand(a), showCommand(a), rmCommand(a))
	net.AddCommand(&cobra.Command{
		Use: "ls", Args: app.Operands(""),
		Short: "List the networks, their files, and the errors in the files",
		RunE:  func(*cobra.Command, []string) error { return list(a) },
	})
	return net
}

// listing is the answer of net ls.
type listing struct {
	Networks []netInfo             `json:"networks"`
	Problems []netconf.FileProblem `json:"problems,omitempty"`
}

func list(a *app.App) error {
	lists, problems := netconf.Lists(true)
	doc := listing{Networks: []netInfo{}}
	s, err := snapshot.Read("")
	if err != nil {
		return err
	}
	defer s.Close()
	blind := attached.Unseen(s.Unread)
	said, all := map[[2]string]bool{}, netconf.Wires(lists)
	for _, l := range lists {
		i := infoOf(a, l, all, said)
		if n := len(s.On(l.Name)); blind == nil {
			i.Attached = &n
		}
		doc.Networks = append(doc.Networks, i)
	}
	for _, l := range s.Remembered(lists) {
		n := len(s.On(l.Name))
		lists = append(lists, l)
		doc.Networks = append(doc.Networks, netInfo{Name: l.Name, CNIVersion: l.CNIVersion, Plugins: typesOf(l),
			Attached: &n, Remembered: true})
	}
	for _, p := range problems {
		doc.Problems = append(doc.Problems, netconf.ProblemOf(p))
		a.Status = app.ExitFailure
	}
	if a.JSON() {
		return a.PrintJSON(doc)
	}
	doc.print(a, lists)
	if blind != nil {
		a.Note("%v", blind)
	}
	for _, n := range doc.Networks {
		if n.Remembered {
			a.Note("warning: no usable file defines network %s, which has containers; `fairlead doctor` has the "+
				"command that writes it again", n.Name)
		}
		app.Warn(a, n.Warnings)
	}
	for _, p := range problems {
		a.Note("%s", term.Lines(p))
	}
	return nil
}

// infoOf returns a network with the warnings about its file.
func infoOf(a *app.App, l *spec.List, all []netconf.Wired, said map[[2]string]bool) netInfo {
	i := netInfo{Name: l.Name, CNIVersion: l.CNIVersion, File: l.File, Plugins: typesOf(l)}
	// the built-in network needs no check, whatever CNI_PATH is
	if n := (&netconf.Network{List: l}); l.File != "" {
		for _, w := range slices.Concat(n.FileWarnings(), validate.Tried(n), netconf.UnspokenVersions(a, n),
			netconf.Overlaps(l, all, said)) {
			i.Warnings = append(i.Warnings, netconf.ProblemOf(w))
		}
	}
	return i
}

func typesOf(l *spec.List) []string {
	types := []string{}
	for _, p := range l.Plugins {
		types = append(types, p.Type)
	}
	return types
}

// print prints the networks; lists has the same order.
func (doc listing) print(a *app.App, lists []*spec.List) {
	t := term.Table{{"NETWORK", "CNI", "PLUGINS", "ATTACHED", "FILE"}}
	for i, n := range doc.Networks {
		file := "built in"
		switch {
		case n.Remembered:
			file = "missing"
		case n.File != "":
			file = filepath.Clean(n.File)
		}
		attached := attached.Unknown
		if n.Attached != nil {
			attached = strconv.Itoa(*n.Attached)
		}
		t = append(t, []any{n.Name, n.CNIVersion, (&netconf.Network{List: lists[i]}).Types(), attached, file})
	}
	a.Draw(t)
}
