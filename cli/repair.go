package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/repair"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// A repaired is an attachment as repair prints it.
type repaired struct {
	attached
	State    repair.State `json:"state"`
	Repaired []string     `json:"repaired,omitempty"`
	Drift    []string     `json:"drift,omitempty"`
	NotOurs  []string     `json:"notOurs,omitempty"`
	Changed  bool         `json:"networkChanged,omitempty"`
}

// A repairing is the answer of repair.
type repairing struct {
	OK          bool       `json:"ok"`
	Tables      []string   `json:"tables,omitempty"`
	Attachments []repaired `json:"attachments"`
	Problems    []string   `json:"problems,omitempty"`
	Took        int64      `json:"tookNanoseconds"`
}

func (a *app) repairCommand() *cobra.Command {
	var r repair.Repairer
	var watch, shut, adopt bool
	c := &cobra.Command{
		Use: "repair", GroupID: "attach", Args: operands(""),
		Short: "Restore the host-side state of attachments without restarting their containers",
		Long: `Compare the host-side state of every attachment with what it should be, and restore what is missing. With
--firewall these are the packet filter rules, for example after a flush or reload of the packet filter. Without
--firewall they are also host settings, bridges, and the addresses and ports of bridges. The wanted state comes from the
attachments in the cache. Nothing inside a container is changed; faults there are reported.

Rules that block packets are restored first, and ports are published again last. Attachments whose namespace is gone,
or whose address belongs to another container by now, are left to gc. Attachments that the reference plugins made are
left alone, too: if rules of theirs are missing, the exit status is 3. --adopt attaches them anew with Fairlead's
plugins and the same addresses, while their containers live.`,
		Example: `  fairlead repair --firewall             after nft flush ruleset, or a reload of firewalld
  fairlead repair --dry-run              say what is missing, and change nothing`,
		RunE: func(c *cobra.Command, args []string) error {
			r.Runtime, r.Plugins = &attach.Runtime{Stderr: newScreen(a.stderr)}, plugin.All()
			r.Foreign, r.External = foreign(), externals()
			r.Now = configured
			if r.Network != "" {
				if err := spec.ValidName(r.Network); err != nil {
					return usage("--network %q: %w", r.Network, err)
				}
			}
			if shut && watch || shut && r.DryRun || watch && r.DryRun {
				return usage("--dry-run, --watch, --shut: want one of them")
			}
			if shut {
				did, err := repair.Shut(a.interruptible())
				for _, line := range did {
					a.note("%s", line)
				}
				return err
			}
			if adopt && (watch || shut || r.DryRun) {
				return usage("--adopt: goes without --dry-run, --watch and --shut")
			}
			if err := a.known(r.Network); err != nil {
				return err
			}
			if watch {
				return a.watchRepair(a.interruptible(), &r)
			}
			defer a.logLater()()
			report, err := r.Run(a.interruptible())
			if err != nil {
				return err
			}
			if adopt {
				a.attachAnew(c.Context(), report)
			}
			if !r.DryRun {
				a.recordRepair(report)
			}
			if !report.OK() {
				a.status = exitDrift
			}
			return a.printRepair(report, r.DryRun)
		},
	}
	c.Flags().BoolVar(&r.Firewall, "firewall", false, "only the packet filter")
	c.Flags().StringVar(&r.Network, "network", "", "only the attachments of the network `NET`")
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "change nothing; exit status 3 if something is missing")
	c.Flags().BoolVar(&watch, "watch", false,
		"repair now and whenever somebody flushes or reloads the packet filter, until a signal")
	c.Flags().BoolVar(&shut, "shut", false,
		"before the packet filter is flushed: keep containers from 127.0.0.1 of the host until the next repair")
	c.Flags().BoolVar(&adopt, "adopt", false,
		"attach anew what the reference plugins attached, with the same addresses; its connections are interrupted")
	c.RegisterFlagCompletionFunc("network", completeNetworks)
	return c
}

// watchRepair repairs until it is told to stop. What went wrong once may go well the next time.
func (a *app) watchRepair(ctx context.Context, r *repair.Repairer) error {
	err := r.Watch(ctx, func(report *repair.Report, err error) {
		if err == nil {
			a.recordRepair(report)
			err = a.printRepair(report, false)
		}
		if err != nil {
			a.report(err)
		}
	})
	if errors.As(context.Cause(ctx), new(interrupted)) {
		return nil
	}
	return err
}

// foreign says of a plugin whether the program that would run for it is another's.
func foreign() func(l *spec.List, typ string) string {
	known := map[string]string{}
	var mu sync.Mutex
	return func(l *spec.List, typ string) string {
		mu.Lock()
		defer mu.Unlock()
		dirs, _ := search(&network{List: l})
		path, err := invoke.Find(typ, dirs)
		if err != nil {
			return "" // then it is fairlead itself
		}
		why, ok := known[path]
		if !ok {
			if !ours(path) {
				why = path + " is another program of that name"
			}
			known[path] = why
		}
		return why
	}
}

func (a *app) printRepair(report *repair.Report, dry bool) error {
	doc := repairing{OK: report.OK(), Tables: report.Guard, Attachments: []repaired{}, Problems: report.Problems,
		Took: report.Took.Nanoseconds()}
	for _, f := range report.Findings {
		doc.Attachments = append(doc.Attachments, repaired{
			attached{Network: f.Owner.Network, ContainerID: f.Owner.ContainerID, IfName: f.Owner.IfName, Netns: f.Netns},
			f.State, f.Repaired, f.Drift, f.NotOurs, f.Changed})
	}
	if a.json() {
		return printJSON(a.stdout, doc)
	}
	s := a.style(a.stdout)
	for _, line := range doc.Tables {
		a.print("%s %s\n", s.good("repaired:"), strings.ReplaceAll(line, " is missing", " was missing"))
	}
	name := shortOwners()
	count, changed, begun := map[repair.State]int{}, []string{}, []string{}
	for _, f := range report.Findings {
		count[f.State]++
		if f.Changed && !slices.Contains(changed, f.Owner.Network) {
			changed = append(changed, f.Owner.Network)
		}
		if len(f.Left) > 0 {
			begun = append(begun, deletes(f.Owner, f.Netns))
		}
		if f.State == repair.InOrder && len(f.NotOurs) == 0 || f.State == repair.Handed {
			continue // the sum says it
		}
		a.finding(f, name(f.Owner), s).print(a.stdout, s)
	}
	var sum []string
	for _, state := range []repair.State{repair.Repaired, repair.InOrder, repair.ToRepair, repair.Broken, repair.Gone,
		repair.Busy, repair.Foreign, repair.Offline, repair.Adopted, repair.Handed} {
		if n := count[state]; n > 0 {
			sum = append(sum, fmt.Sprintf("%d %s", n, state))
		}
	}
	if report.Unread > 0 {
		sum = append(sum, fmt.Sprintf("%d unread", report.Unread))
	}
	if len(sum) == 0 {
		sum = []string{"nothing is attached"}
	}
	a.print("%s\n", strings.Join(sum, ", "))
	for _, p := range doc.Problems {
		a.note("%s", p)
	}
	if count[repair.Handed] > 0 {
		a.note("what was handed over to the reference plugins is theirs, and not repaired until it is attached anew " +
			"(fairlead firewall handover)")
	}
	for _, network := range changed {
		a.note("network %s is configured otherwise now than when it was attached to; repair goes by what was then, and "+
			"`fairlead del` and `fairlead add` take the change over", network)
	}
	for _, del := range begun {
		a.note("%s finishes what a del has begun, once the plugin that failed is there and works", del)
	}
	if count[repair.Broken] > len(begun) {
		for _, note := range beyondRepair(report.Findings) {
			a.note("%s", note)
		}
	}
	if count[repair.Gone] > 0 {
		a.note("`fairlead gc --gone` removes what dead containers left")
	}
	if count[repair.Offline] > 0 {
		a.note("what the reference plugins made of an attachment is theirs to mend; `fairlead repair --adopt` attaches it " +
			"anew by fairlead's, with the same addresses")
	}
	if dry && !doc.OK {
		a.note("nothing was changed; without --dry-run it is repaired as far as that can be")
	}
	return nil
}

// finding is an attachment that there is something to say of.
func (a *app) finding(f repair.Finding, name string, s style) *tree {
	state := s.doubt(string(f.State))
	switch f.State {
	case repair.Repaired, repair.InOrder, repair.Adopted:
		state = s.good(string(f.State))
	case repair.Broken, repair.Offline:
		state = s.bad(string(f.State))
	}
	node := &tree{text: sprintf("%s %s", name, state)}
	for _, line := range f.Repaired {
		node.add("%s", line)
	}
	said := map[string]bool{}
	for _, w := range f.Wrong {
		for _, line := range w.What {
			said[w.Resource+": "+line] = true
		}
		paint, before := s.bad, "cannot be mended: "
		if w.Mends {
			paint, before = s.doubt, ""
		}
		if len(w.What) == 1 {
			node.add("%s", paint(before+w.Resource+": "+w.What[0]))
			continue
		}
		kid := node.add("%s", paint(before+w.Resource))
		const most = 3
		for i, line := range w.What {
			if i == most && len(w.What) > most+1 {
				kid.add("%s", paint(fmt.Sprintf("and %d more (-o json has all)", len(w.What)-most)))
				break
			}
			kid.add("%s", paint(line))
		}
	}
	for _, line := range f.Drift {
		if !said[line] {
			node.add("%s", s.bad(line))
		}
	}
	for _, line := range f.NotOurs {
		node.add("%s", s.doubt("not ours, not repaired: "+line))
	}
	return node
}

// configured are the networks as their files define them now.
func configured() []*spec.List {
	lists, _ := spec.LoadDir(confDir()) // a file with mistakes does not define what is attached
	return lists
}
