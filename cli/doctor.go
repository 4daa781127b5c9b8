package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/repair"
	"github.com/spf13/cobra"
)

// A doctor is a run of doctor.
type doctor struct {
	*app
	*diagnosis
	ctx  context.Context
	host *kernel.NS
	all  []attach.Cached // every attachment
	mine []attach.Cached // those that are asked about

	named bool   // they were
	probe bool   // send packets from inside
	to    string // an address to probe

	lacked   map[string]*lacking // by kind of links
	nameless atomic.Int32        // containers whose name servers are not known

	found    []repair.Finding // of all attachments
	verdicts []judged
	astray   []strayed
	holders  func(inode uint32) string
}

func (a *app) doctorCommand() *cobra.Command {
	d := doctor{app: a}
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
			d.ctx, d.named = a.interruptible(), len(args) > 0
			if _, _, err := splitTarget(d.to); d.to != "" && err != nil {
				return usage("--to %s: %w", d.to, err)
			}
			if d.to != "" && !d.named && !d.probe {
				return usage("--to: name a container, or add --probe for all")
			}
			if err := d.diagnose(args); err != nil {
				return err
			}
			switch {
			case d.faulty():
				a.status = exitDrift
			case len(d.Unseen) > 0:
				a.status = exitFailure
			}
			if a.json() {
				return printJSON(a.stdout, d.diagnosis)
			}
			d.print()
			return nil
		},
		ValidArgsFunction: completeContainers,
	}
	c.Flags().BoolVar(&d.probe, "probe", false, "send packets from inside all containers, not only those that are named")
	c.Flags().StringVar(&d.to, "to", "", "try to reach `ADDRESS` or ADDRESS:PORT (TCP) from inside")
	return c
}

// diagnose looks at everything.
func (d *doctor) diagnose(names []string) (err error) {
	d.diagnosis = &diagnosis{Findings: []*diagnosed{}, Looked: map[string]int{}}
	if d.host, err = kernel.Open(""); err != nil {
		return err
	}
	defer d.host.Close()
	list, problems := (&attach.Runtime{}).List("")
	d.all = list
	if err := unseen(problems); err != nil {
		if d.named {
			return err
		}
		d.blind("%v", err)
	} else {
		if err := d.choose(names); err != nil {
			return err
		}
		d.Looked[onContainer] = len(d.mine)
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
	return d.ctx.Err()
}

// choose takes the attachments that the names mean, or all.
func (d *doctor) choose(names []string) error {
	if len(names) == 0 {
		d.mine = d.all
		return nil
	}
	for _, name := range names {
		found := find(name, d.all)
		if len(found) == 0 {
			return notAttached(name)
		}
		for _, c := range found {
			if !slices.ContainsFunc(d.mine, func(x attach.Cached) bool { return x.Owner() == c.Owner() }) {
				d.mine = append(d.mine, c)
			}
		}
	}
	return nil
}

// notAttached is the error of a name that no container has.
func notAttached(name string) error {
	return fail(exitNotFound, "`fairlead ls` lists what is attached. A container that no runtime attached by CNI, as "+
		"Docker's, is not known here.", "container %q: %w", name, attach.ErrNotAttached)
}

func completeContainers(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	list, _ := (&attach.Runtime{}).List("")
	var ids []string
	for _, c := range list {
		ids = append(ids, c.ContainerID)
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// who is an attachment as findings name it.
func who(c attach.Cached, details ...string) []affected {
	return []affected{{c.Owner().String(), c.Netns, details, "", nameOf(c), shortOwner(c)}}
}

// whom are attachments as findings name them.
func whom(list []attach.Cached) (all []affected) {
	for _, c := range list {
		all = append(all, who(c)...)
	}
	return all
}

// denied reports whether something could not be looked at for want of a right.
func denied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EPERM) || deniedText(fmt.Sprint(err))
}

// deniedText is denied of an error that is known by its words only.
func deniedText(line string) bool {
	return strings.Contains(line, "permission denied") || strings.Contains(line, "operation not permitted")
}
