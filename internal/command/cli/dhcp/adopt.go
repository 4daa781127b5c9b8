package dhcp

import (
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/dhcp/daemon"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// An adopted is an attachment as adopt prints it.
type adopted struct {
	attached.Key
	State  string `json:"state"` // kept, kept before, to be kept, failed
	Reason string `json:"reason,omitempty"`
}

func dhcpAdoptCommand(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use: "adopt [NET]", Args: app.Operands("[NET]"),
		Short: "Take over the leases that another DHCP daemon got",
		Long: `Have the daemon take over leases that another daemon got, for example the reference's. The daemon asks the
servers whether the addresses are still valid, and keeps these leases from then on. Otherwise they would expire while
their containers run. The containers are found in the results cache, for all networks or for NET.`,
		ValidArgsFunction: netconf.CompleteNetworks,
	}
	dry := c.Flags().Bool("dry-run", false, "only say which they are")
	socket := socketFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		socket := socket(strings.Join(args, ""))
		known, err := Leases(c.Context(), socket, func(Leased) bool { return true })
		if err != nil {
			return err
		}
		kept := map[spec.Owner]bool{}
		for _, l := range known {
			kept[l.Owner()] = true
		}
		s, err := snapshot.Read(strings.Join(args, ""))
		if err != nil {
			return err
		}
		defer s.Close()
		all := []adopted{}
		for _, at := range s.All {
			q, netns, err := adoption(&attach.Runtime{}, &at)
			if q == nil && err == nil || s.Gone(at) {
				continue // its addresses are from elsewhere
			}
			one := adopted{attached.KeyOf(at.Owner(), netns), "kept", ""}
			switch {
			case err != nil:
			case kept[at.Owner()]:
				one.State = "kept before"
			case *dry:
				one.State = "to be kept"
			default:
				_, err = askDaemon(c.Context(), adoptLimit, socket, *q)
			}
			if err != nil {
				one.State, one.Reason = "failed", err.Error()
				a.Status = app.ExitFailure
			}
			all = append(all, one)
		}
		texts := s.Problems(a, strings.Join(args, ""))
		if a.JSON() {
			return a.PrintJSON(struct {
				DryRun   bool      `json:"dryRun"`
				Adopted  []adopted `json:"adopted"`
				Problems []string  `json:"problems,omitempty"`
			}{*dry, all, texts})
		}
		printAdopted(a, all, texts)
		return nil
	}
	return c
}

func printAdopted(a *app.App, all []adopted, problems []string) {
	if len(all) == 0 {
		a.Print("no container has an address by DHCP\n")
	}
	s := a.Style(a.Stdout)
	for _, one := range all {
		o := spec.Owner{Network: one.Network, ContainerID: one.ContainerID, IfName: one.IfName}
		state := s.Good(one.State)
		if one.State == "failed" {
			state = s.Bad(one.State) + ": " + term.Printable(one.Reason)
		}
		a.Print("%s: %s\n", o, state)
	}
	a.NoteAll(problems)
}

// adoption is what the daemon is asked to adopt an attachment; nil where that has no address by DHCP.
func adoption(r *attach.Runtime, at *attach.Cached) (q *rpc.Question, netns string, err error) {
	netns = at.Netns
	if netns == "" && at.Result != nil { // older programs with the reference library do not write it down
		for _, f := range at.Result.Interfaces {
			if f.Name == at.IfName && f.Sandbox != "" {
				netns = f.Sandbox
			}
		}
	}
	if at.Bare {
		return nil, netns, nil
	}
	l, err := spec.ParseList(at.Config)
	if err != nil {
		return nil, netns, nil // the cache's other readers say so
	}
	for i, conf := range l.WrittenOut().Plugins {
		if conf.IPAMType != "dhcp" {
			continue
		}
		inputs, args, err := r.Inputs(l, at)
		if err != nil {
			return nil, netns, err
		}
		var pairs []string
		for _, kv := range args {
			pairs = append(pairs, kv[0]+"="+kv[1])
		}
		return &rpc.Question{Verb: daemon.Adopt,
			Args: rpc.Args{ContainerID: at.ContainerID, Netns: netns, IfName: at.IfName,
				Args: strings.Join(pairs, ";"), StdinData: inputs[i].Stdin}}, netns, nil
	}
	return nil, netns, nil
}
