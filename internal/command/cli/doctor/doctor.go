// Package doctor is fairlead doctor: it finds out why containers have no network. Each file examines one thing, such
// as the host, the packet filters or the inside of a container, and adds findings. Their texts are in rows*.go. The
// package changes nothing; package advice has the commands that correct an attachment.
package doctor

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/spf13/cobra"
)

// Doctor is one run of doctor.
type Doctor struct {
	*app.App
	*Diagnosis
	*snapshot.Snapshot
	Ctx      context.Context
	Selected []attach.Cached // those that the user asked about

	named bool   // the user named containers
	probe bool   // send packets from inside containers
	to    string // an address to probe

	nameless atomic.Int32 // number of containers whose name servers are unknown

	plans    *repair.Report // how Selected differs from its plans; nil: not compared yet
	Verdicts []judged
	strays   []drift // routes to containers with published ports that lead elsewhere
}

// Command is `fairlead doctor`.
func Command(a *app.App) *cobra.Command {
	d := Doctor{App: a}
	c := &cobra.Command{
		Use: "doctor [CONTAINER...]", GroupID: "look",
		Short: "Find out why a container has no network, and which command corrects it",
		Long: `Look at the host, the networks and the containers. Print each cause that keeps containers from their network:
where, why, and the command that corrects it. One cause is one finding, however many containers it affects. Each has
an ID, which fairlead explain explains. Nothing is changed.

CONTAINER is the ID of a container or its beginning, the name or path of its network namespace, NET/ID, or a pod as
NAMESPACE/NAME. Then only findings that concern this container are printed, and doctor sends packets from inside it.
With --probe it sends them from inside all containers; otherwise it sends no packet. It probes the gateway, the name
servers and the address of --to, asks by ARP whether another machine uses the container's address, and sends large
packets that the way out may lose.

For an ordinary user, doctor says what it could not see.

Exit status: 0 no fault (there may be warnings), 1 no fault found, but something could not be seen, 3 a container is or
will be without network, 4 no such container.`,
		Example: `  fairlead doctor
  fairlead doctor web                         examine one container, and probe from inside
  fairlead doctor web --to 192.0.2.1:443      also try to reach an address from inside`,
		RunE: func(c *cobra.Command, args []string) error {
			d.Ctx, d.named = a.Interruptible(), len(args) > 0
			if d.to != "" && !d.named && !d.probe {
				return app.Usage("--to: name a container, or add --probe for all")
			}
			if err := d.diagnose(args); err != nil {
				return err
			}
			d.SetStatus()
			if a.JSON() {
				return a.PrintJSON(d.Diagnosis)
			}
			d.print()
			return nil
		},
		ValidArgsFunction: attached.CompleteContainers,
	}
	c.Flags().BoolVar(&d.probe, "probe", false,
		"send packets from inside all containers, not only those that are named")
	c.Flags().StringVar(&d.to, "to", "",
		"try to reach `ADDRESS` or ADDRESS:PORT (TCP) from inside, or another container")
	return c
}

// Open returns a Doctor for another command. It knows all attachments and has examined nothing. Open fails if the
// attachments cannot be read.
func Open(a *app.App) (d *Doctor, err error) {
	s, err := snapshot.Open("")
	if err != nil {
		return nil, err
	}
	return Of(a, s), nil
}

// Of returns a Doctor that examines a snapshot.
func Of(a *app.App, s *snapshot.Snapshot) *Doctor {
	return &Doctor{App: a, Snapshot: s, named: true, Ctx: a.Interruptible(), Diagnosis: newDiagnosis()}
}

// Examine examines the attachments in Selected, sends no packet, and keeps the findings that concern them.
func (d *Doctor) Examine() {
	for _, p := range d.Unread {
		d.Unexamined("%v", p)
	}
	d.ofRepair()
	d.ofFilters()
	d.ofInput()
	d.ofPorts()
	d.ofContainers()
	d.Findings = slices.DeleteFunc(d.Findings, func(f *Diagnosed) bool { return len(f.Containers) == 0 })
	d.conclude()
}

// examineAll runs all examinations. They need no order, but ofPaths skips containers that have a finding already.
func (d *Doctor) examineAll() {
	d.ofRepair()
	d.ofAddresses()
	d.ofForwarding()
	d.ofFilters()
	d.ofInput()
	d.ofRoutes()
	d.ofBridges()
	d.ofClock()
	d.ofPorts()
	d.conntrack("/proc/sys/net/netfilter/")
	d.neighbours("/proc")
	d.ofState()
	d.ofProbes()
	d.ofNetworks()
	d.ofContainers()
	d.ofPaths()
}

// SetStatus sets the exit status from the findings and from what could not be seen.
func (d *Doctor) SetStatus() {
	switch {
	case d.faulty():
		d.Status = app.ExitFault
	case len(d.Unseen) > 0:
		d.Status = app.ExitFailure
	}
}

// diagnose runs all examinations.
func (d *Doctor) diagnose(names []string) (err error) {
	d.Diagnosis = newDiagnosis()
	if d.Snapshot, err = snapshot.Read(""); err != nil {
		return err
	}
	defer d.Close()
	if err := attached.Unseen(d.Unread); err != nil {
		if d.named {
			return err
		}
		d.plans = &repair.Report{}
		d.Unexamined("%v", err)
	} else {
		if err := d.choose(names); err != nil {
			return err
		}
		for _, c := range d.Selected {
			if _, err := d.Target(d.to, c); d.to != "" && err != nil {
				return err
			}
		}
		d.Looked[onContainer] = len(d.Selected)
	}
	d.examineAll()
	d.conclude()
	return d.Ctx.Err()
}

// choose selects the attachments that names mean, or all.
func (d *Doctor) choose(names []string) error {
	if len(names) == 0 {
		d.Selected = d.All
		return nil
	}
	for _, name := range names {
		found := attached.Find(name, d.All)
		if len(found) == 0 {
			return attached.NotAttached(name, d.All)
		}
		for _, c := range found {
			if attached.ByOwner(d.Selected, c.Owner()) == nil {
				d.Selected = append(d.Selected, c)
			}
		}
	}
	return nil
}

// affects returns an attachment as findings name it.
func affects(c attach.Cached, details ...string) []affected {
	return []affected{{Container: c.Owner().String(), Netns: c.Netns, Details: details, Name: attached.Name(c),
		short: attached.ShortOwner(c), attachment: c}}
}

// affectsAll returns attachments as findings name them.
func affectsAll(list []attach.Cached) (all []affected) {
	for _, c := range list {
		all = append(all, affects(c)...)
	}
	return all
}
