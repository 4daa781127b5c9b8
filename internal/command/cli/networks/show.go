package networks

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// shown is the answer of net show.
type shown struct {
	Name        string                `json:"name"`
	File        string                `json:"file"` // empty: built in
	List        json.RawMessage       `json:"list"` // with the plugins from the folder beside the file
	Attachments []snapshot.Attachment `json:"attachments"`
	Warnings    []netconf.FileProblem `json:"warnings,omitempty"`
	Problems    []string              `json:"problems,omitempty"` // of the cache
}

func showCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "show NET", Args: app.Operands("NET"),
		Short: "Show a network: its file, its plugins with their keys, and what is attached",
		Long: `Show the network NET: its file, its plugins with their keys, and the containers that are attached. NET is the name of a
network, or the path of a file that defines one. Nothing is changed.

Exit status: 0 shown, 1 a file of the cache cannot be read, 4 no such network.`,
		Example: `  fairlead net show fairlead
  fairlead net show fairlead -o json`,
		RunE: func(c *cobra.Command, args []string) error { return show(a, args[0]) },

		ValidArgsFunction: netconf.CompleteNetworks,
	}
}

func show(a *app.App, arg string) error {
	n, err := netconf.FindOrFile(a, arg)
	if err != nil {
		return err
	}
	doc := shown{Name: n.Name, Attachments: []snapshot.Attachment{}}
	if n.File != "" {
		doc.File = filepath.Clean(n.File)
	}
	if doc.List, err = netconf.Document(n.List); err != nil {
		return err
	}
	doc.Warnings = infoOf(a, n.List, netconf.Wires(netconf.Configured()), map[[2]string]bool{}).Warnings
	s, err := snapshot.Read(n.Name)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, c := range s.All {
		doc.Attachments = append(doc.Attachments, s.Describe(c))
	}
	doc.Problems = s.Problems(a, n.Name)
	if a.JSON() {
		return a.PrintJSON(doc)
	}
	return doc.print(a, n)
}

func (doc shown) print(a *app.App, n *netconf.Network) error {
	s := a.Style(a.Stdout)
	file := doc.File
	if file == "" {
		file = "built in"
	}
	root := &term.Tree{Text: term.Sprintf("%s, %s, CNI %s", s.Bold(doc.Name), file, n.CNIVersion)}
	for _, p := range n.Plugins {
		node := root.Add("%s", s.Bold(p.Type))
		if err := addKeys(node, p.Object); err != nil {
			return err
		}
	}
	for _, c := range doc.Attachments {
		name := attached.ShortID(c.ContainerID)
		if c.Name != "" {
			name = c.Name
		}
		words := []string{"attached:", name, c.IfName}
		for _, p := range c.Addresses {
			words = append(words, p.String())
		}
		root.Add("%s, %s", strings.Join(words, " "), c.State)
	}
	if len(doc.Attachments) == 0 {
		root.Add("nothing is attached")
	}
	a.Draw(root)
	app.Warn(a, doc.Warnings)
	a.NoteAll(doc.Problems)
	return nil
}

// addKeys adds the keys of a plugin's configuration, in the order of the file.
func addKeys(to *term.Tree, conf spec.Object) error {
	raw, err := conf.MarshalJSON()
	if err != nil {
		return err
	}
	d := json.NewDecoder(strings.NewReader(string(raw)))
	if _, err := d.Token(); err != nil { // the brace
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		if key != "type" {
			to.Add("%s %s", key, string(value))
		}
	}
	return nil
}
