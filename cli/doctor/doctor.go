// Package doctor finds out why containers have no network: fairlead doctor. Each file looks at one thing, as the
// host, the filters or a container from the inside, and adds findings, whose texts are all in kinds.go. It changes
// nothing; what it says to do is of package advice.
package doctor

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/cli/term"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/repair"
	"github.com/spf13/cobra"
)

// A Doctor is a run of doctor.
type Doctor struct {
	*app.App
	*Diagnosis
	Ctx    context.Context
	HostNS *kernel.NS
	All    []attach.Cached // every attachment
	Mine   []attach.Cached // those that are asked about

	named bool   // they were
	probe bool   // send packets from inside
	to    string // an address to probe

	lacked   map[string]*lacking // by kind of links
	nameless atomic.Int32        // containers whose name servers are not known

	Found    []repair.Finding // of all attachments
	Verdicts []judged
	astray   []strayed
	holders  func(inode uint32) string
}

// Command is `fairlead doctor`.
func Command(a *app.App) *cobra.Command {
	d := Doctor{App: a}
	c := &cobra.Command{
		Use: "doctor [CONTAINER...]", GroupID: "look",
		Short: "Find out why a container has no network, and which command corrects it",
		Long: `Look at the host, the networks and the containers. Print each cause that keeps containers from their network:
where, why, and the command that corrects it. One cause is one finding, however many containers it affects. Each has
an ID, which docs/doctor.md explains. Nothing is changed.

CONTAINER is the ID of a container or its beginning, the name or path of its network namespace, NET/ID, or a pod as
NAMESPACE/NAME; then only the findings that concern it are printed. Doctor sends packets from inside a named container,
and with --probe from inside all: to its gateway, its name servers and the address of --to, by ARP for an address of
the container that another machine uses, and large packets that the way out may lose. Otherwise it sends no packet.

For an ordinary user, doctor says what it could not see. The exit status is 0 if all is in order, 3 if a container is or
will be without network, and 1 if doctor found no fault and could not see something. Warnings do not count.`,
		Example: `  fairlead doctor
  fairlead doctor web --to 192.0.2.1:443      look at one container, and try an address from inside`,
		RunE: func(c *cobra.Command, args []string) error {
			d.Ctx, d.named = a.Interruptible(), len(args) > 0
			if _, _, err := SplitTarget(d.to); d.to != "" && err != nil {
				return app.Usage("--to %s: %w", d.to, err)
			}
			if d.to != "" && !d.named && !d.probe {
				return app.Usage("--to: name a container, or add --probe for all")
			}
			if err := d.diagnose(args); err != nil {
				return err
			}
			d.Conclude()
			if a.JSON() {
				return term.PrintJSON(a.Stdout, d.Diagnosis)
			}
			d.print()
			return nil
		},
		ValidArgsFunction: attached.CompleteContainers,
	}
	c.Flags().BoolVar(&d.probe, "probe", false,
		"send packets from inside all containers, not only those that are named")
	c.Flags().StringVar(&d.to, "to", "", "try to reach `ADDRESS` or ADDRESS:PORT (TCP) from inside")
	return c
}

// Open is a run for another command, which knows every attachment and has looked at nothing yet. It fails where nothing
// can be known of the attachments.
func Open(a *app.App) (d *Doctor, err error) {
	d = &Doctor{App: a, named: true, Ctx: a.Interruptible(), Diagnosis: newDiagnosis()}
	if d.HostNS, err = kernel.Open(""); err != nil {
		return nil, err
	}
	list, problems := (&attach.Runtime{}).List("")
	if err := attached.Unseen(problems); err != nil {
		d.Close()
		return nil, err
	}
	d.All = list
	return d, nil
}

// Close closes what Open has opened.
func (d *Doctor) Close() { d.HostNS.Close() }

// Examine looks at the attachments of Mine without sending a packet, and keeps the findings that concern them.
func (d *Doctor) Examine() {
	d.ofRepair()
	d.ofFilters()
	d.ofInput()
	d.ofPorts()
	d.ofContainers()
	d.Findings = slices.DeleteFunc(d.Findings, func(f *Diagnosed) bool { return len(f.Containers) == 0 })
	d.settle()
}

// Conclude sets the exit status by what was found, and by what could not be seen.
func (d *Doctor) Conclude() {
	switch {
	case d.faulty():
		d.Status = app.ExitDrift
	case len(d.Unseen) > 0:
		d.Status = app.ExitFailure
	}
}

// diagnose looks at everything.
func (d *Doctor) diagnose(names []string) (err error) {
	d.Diagnosis = newDiagnosis()
	if d.HostNS, err = kernel.Open(""); err != nil {
		return err
	}
	defer d.HostNS.Close()
	list, problems := (&attach.Runtime{}).List("")
	d.All = list
	if err := attached.Unseen(problems); err != nil {
		if d.named {
			return err
		}
		d.Blind("%v", err)
	} else {
		if err := d.choose(names); err != nil {
			return err
		}
		d.Looked[onContainer] = len(d.Mine)
		d.ofRepair()
	}
	d.ofHost()
	d.ofState(problems)
	d.ofFilters()
	d.ofInput()
	d.ofKernel()
	d.ofNetworks()
	d.ofPorts()
	d.ofContainers()
	d.ofPaths()
	if d.named || d.probe {
		d.ofProbes()
	}
	d.settle()
	return d.Ctx.Err()
}

// choose takes the attachments that the names mean, or all.
func (d *Doctor) choose(names []string) error {
	if len(names) == 0 {
		d.Mine = d.All
		return nil
	}
	for _, name := range names {
		found := attached.Find(name, d.All)
		if len(found) == 0 {
			return attached.NotAttached(name)
		}
		for _, c := range found {
			if !slices.ContainsFunc(d.Mine, func(x attach.Cached) bool { return x.Owner() == c.Owner() }) {
				d.Mine = append(d.Mine, c)
			}
		}
	}
	return nil
}

// who is an attachment as findings name it.
func who(c attach.Cached, details ...string) []affected {
	return []affected{{c.Owner().String(), c.Netns, details, "", attached.Name(c), attached.ShortOwner(c)}}
}

// whom are attachments as findings name them.
func whom(list []attach.Cached) (all []affected) {
	for _, c := range list {
		all = append(all, who(c)...)
	}
	return all
}
