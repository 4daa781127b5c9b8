package cli

import (
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/spf13/cobra"
)

func lsCommand(a *app.App) *cobra.Command {
	var f snapshot.Filter
	c := &cobra.Command{
		Use: "ls [NET]", GroupID: "look", Args: app.Operands("[NET]"),
		Short: "List attachments, made by any runtime",
		Long: `List the attachments that the cache of this host remembers, of all networks or of NET: those of fairlead,
and those of containerd, podman and every other program that uses the reference library. The state of an attachment is

  alive    its network namespace exists
  gone     its network namespace no longer exists, or another one has its name: fairlead gc removes what it left
  unknown  the program that attached it has not recorded the namespace, or fairlead cannot see it, as in a container
           without the host's mounts

NAME is a pod's NAMESPACE/NAME, podman's name of the container, or the NETNS that "fairlead add" made the ID from. Long
IDs are cut to 12 digits; all commands that take a container accept these. The attachments of ` + attached.LoopbackNetwork + `, with
which containerd sets up lo of each pod, are only counted, unless NET is that network or --all is given. The document of
-o json has all attachments and whole IDs.`,
		Example: `  fairlead ls lan --state gone
  fairlead ls --container default/web-0`,
		RunE: func(c *cobra.Command, args []string) error { return ls(a, strings.Join(args, ""), f) },

		ValidArgsFunction: netconf.CompleteNetworks,
	}
	snapshot.FilterFlags(c, &f)
	return c
}

func ls(a *app.App, network string, f snapshot.Filter) error {
	s, err := snapshot.Select(network, f)
	if err != nil {
		return err
	}
	defer s.Close()
	doc := struct {
		Attachments []snapshot.Attachment `json:"attachments"`
		Problems    []string              `json:"problems,omitempty"`
	}{Attachments: []snapshot.Attachment{}}
	for _, c := range s.All {
		doc.Attachments = append(doc.Attachments, s.Describe(c))
	}
	doc.Problems = s.Problems(a, network)
	if a.JSON() {
		return a.PrintJSON(doc)
	}
	rows := doc.Attachments
	if network == "" && !f.All {
		rows = slices.DeleteFunc(slices.Clone(rows),
			func(l snapshot.Attachment) bool { return l.Network == attached.LoopbackNetwork })
	}
	printListed(a, rows)
	switch folded := len(doc.Attachments) - len(rows); {
	case folded > 0:
		a.Note("%d of network %s are not listed; --all lists them too", folded, attached.LoopbackNetwork)
	case len(rows) > 0, a.Status != app.ExitOK: // an entry that cannot be read may be an attachment
	case f.State != "":
		a.Print("no attachment is %s\n", f.State)
	default:
		a.Print("nothing is attached\n")
	}
	a.NoteAll(doc.Problems)
	return nil
}

// printListed prints attachments as a table. It has a NAME column if any attachment has a name.
func printListed(a *app.App, list []snapshot.Attachment) {
	if len(list) == 0 {
		return
	}
	s := a.Style(a.Stdout)
	t := term.Table{{"NETWORK", "CONTAINER", "NAME", "INTERFACE", "ADDRESSES", "NETNS", "STATE"}}
	for _, l := range list {
		state := s.Good(l.State)
		if l.State != attached.Alive {
			state = s.Doubt(l.State)
		}
		var addrs []string
		for _, p := range l.Addresses {
			addrs = append(addrs, p.String())
		}
		t = append(t, []any{l.Network, attached.ShortID(l.ContainerID), l.Name, l.IfName, strings.Join(addrs, " "),
			l.Netns, state})
	}
	if !slices.ContainsFunc(list, func(l snapshot.Attachment) bool { return l.Name != "" }) {
		for i, row := range t {
			t[i] = slices.Delete(row, 2, 3)
		}
	}
	a.Draw(t)
}
