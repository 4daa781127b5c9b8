// Package repair is fairlead repair and fairlead firewall: their flags, and how the answer is printed. The repair
// itself is the top-level package repair.
package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/metrics"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// repaired is an attachment in the answer of repair.
type repaired struct {
	attached.Key
	Name     string       `json:"name,omitempty"`
	State    repair.State `json:"state"`
	Repaired []string     `json:"repaired,omitempty"`
	Drift    []string     `json:"drift,omitempty"`

	Differences spec.Differences `json:"differences,omitempty"` // the same as values
	NotOurs     []string         `json:"notOurs,omitempty"`
	Changed     bool             `json:"networkChanged,omitempty"`
}

// repairing is the answer of repair.
type repairing struct {
	OK          bool       `json:"ok"`
	Tables      []string   `json:"tables,omitempty"`
	Attachments []repaired `json:"attachments"`
	Problems    []string   `json:"problems,omitempty"`
	Took        int64      `json:"tookNanoseconds"`
}

// Command is `fairlead repair`.
func Command(a *app.App) *cobra.Command {
	var r repair.Repairer
	var watch, shut, adopt bool
	c := &cobra.Command{
		Use: "repair", GroupID: "attach", Args: app.Operands(""),
		Short: "Restore the host-side state of attachments without restarting their containers",
		Long: `Compare the host-side state of every attachment with what it should be, and restore what is missing. With
--firewall these are the packet filter rules, for example after a flush or reload of the packet filter. Without
--firewall they are also host settings, bridges, and the addresses and ports of bridges. The wanted state comes from the
attachments in the cache. Nothing inside a container is changed; faults there are reported.

Rules that block packets are restored first, and ports are published again last. Attachments whose namespace is gone,
or whose address belongs to another container by now, are left to gc. Attachments that the reference plugins made are
left alone too. --adopt attaches them again with Fairlead's plugins and the same addresses, while their containers live.

Exit status: 0 everything is in order or restored, 1 the repair failed or an attachment cannot be read, 3 something could not be restored, is missing
(with --dry-run), or is a rule of the reference plugins that is missing.`,
		Example: `  fairlead repair --firewall             after nft flush ruleset, or a reload of firewalld
  fairlead repair --dry-run              list what is missing, and change nothing
  fairlead repair --network lan          only the attachments of the network lan`,
		RunE: func(c *cobra.Command, _ []string) error { return run(c.Context(), a, &r, watch, shut, adopt) },
	}
	c.Flags().BoolVar(&r.Firewall, "firewall", false, "only the packet filter")
	c.Flags().StringVar(&r.Network, "network", "", "only the attachments of the network `NET`")
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "change nothing; exit status 3 if something is missing")
	c.Flags().BoolVar(&watch, "watch", false,
		"repair now, and after each flush or reload of the packet filter, until a signal")
	c.Flags().BoolVar(&shut, "shut", false,
		"before a flush of the packet filter: block containers from 127.0.0.1 of the host until the next repair")
	c.Flags().BoolVar(&adopt, "adopt", false,
		"attach again what the reference plugins attached, with the same addresses; connections are interrupted")
	c.RegisterFlagCompletionFunc("network", netconf.CompleteNetworks)
	return c
}

func run(ctx context.Context, a *app.App, r *repair.Repairer, watch, shut, adopt bool) error {
	r.Runtime, r.Plugins = &attach.Runtime{Stderr: term.NewScreen(a.Stderr)}, plugin.All()
	r.Foreign, r.External = netconf.Foreign(), netconf.Externals()
	r.Now = netconf.Configured
	if r.Network != "" {
		if err := spec.ValidName(r.Network); err != nil {
			return app.Usage("--network %q: %w", r.Network, err)
		}
	}
	if shut && watch || shut && r.DryRun || watch && r.DryRun {
		return app.Usage("--dry-run, --watch, --shut: give only one of them")
	}
	if shut {
		did, err := repair.Shut(a.Interruptible())
		a.NoteAll(did)
		return err
	}
	if adopt && (watch || shut || r.DryRun) {
		return app.Usage("--adopt: cannot be combined with --dry-run, --watch or --shut")
	}
	if err := netconf.Known(r.Network); err != nil {
		return err
	}
	if watch {
		return watchRepair(a.Interruptible(), a, r)
	}
	defer a.LogLater()()
	if r.DryRun {
		view, err := snapshot.Look()
		if err != nil {
			return err
		}
		defer view.Close()
		r.View = view
	}
	report, err := r.Run(a.Interruptible())
	if err != nil {
		return err
	}
	if adopt {
		reattach(ctx, a, report)
	}
	if !r.DryRun {
		metrics.RecordRepair(a, report)
	}
	switch {
	case report.Differs():
		a.Status = app.ExitFault
	case !report.OK():
		a.Status = app.ExitFailure
	}
	return printRepair(a, report, r.DryRun)
}

// watchRepair repairs after each flush until it gets a signal. It continues after an error, because the next repair
// may succeed.
func watchRepair(ctx context.Context, a *app.App, r *repair.Repairer) error {
	err := r.Watch(ctx, func(report *repair.Report, err error) {
		if err == nil {
			metrics.RecordRepair(a, report)
			err = printRepair(a, report, false)
		}
		if err != nil {
			advice.Report(a, err)
		}
	})
	if errors.As(context.Cause(ctx), new(app.Interrupted)) {
		return nil
	}
	return err
}

func printRepair(a *app.App, report *repair.Report, dry bool) error {
	doc := repairing{OK: report.OK(), Tables: report.Guard, Attachments: []repaired{}, Problems: report.Problems,
		Took: report.Took.Nanoseconds()}
	for _, f := range report.Findings {
		doc.Attachments = append(doc.Attachments, repaired{
			attached.KeyOf(f.Owner, f.Netns),
			attached.Name(attach.Cached{ContainerID: f.Owner.ContainerID, Netns: f.Netns, Args: f.Args}),
			f.State, f.Repaired, f.Differences.Lines(), f.Differences, f.NotOurs, f.Changed})
	}
	if a.JSON() {
		return a.PrintJSON(doc)
	}
	s := a.Style(a.Stdout)
	for _, line := range doc.Tables {
		a.Print("%s %s\n", s.Good("repaired:"), strings.ReplaceAll(line, " is missing", " was missing"))
	}
	name := attached.ShortOwners()
	count, changed, begun := map[repair.State]int{}, []string{}, []string{}
	for _, f := range report.Findings {
		count[f.State]++
		if f.Changed && !slices.Contains(changed, f.Owner.Network) {
			changed = append(changed, f.Owner.Network)
		}
		if len(f.Left) > 0 {
			begun = append(begun, advice.Deletes(f.Owner, f.Netns))
		}
		if f.State == repair.InOrder && len(f.NotOurs) == 0 || f.State == repair.Handed {
			continue // the summary says it
		}
		finding(f, name(f.Owner), s).Print(a.Stdout, s)
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
	a.Print("%s\n", strings.Join(sum, ", "))
	a.NoteAll(doc.Problems)
	noteRepair(a, report, count, changed, begun)
	if dry && !doc.OK {
		a.Note("nothing was changed; without --dry-run, repair restores what it can")
	}
	return nil
}

// noteRepair prints hints about what was not repaired: foreign and dead attachments, changed networks, and deletions
// that were not finished.
func noteRepair(a *app.App, report *repair.Report, count map[repair.State]int, changed, begun []string) {
	if count[repair.Handed] > 0 {
		a.Note("what was handed over to the reference plugins is not repaired until it is attached again (fairlead " +
			"firewall handover)")
	}
	for _, network := range changed {
		a.Note("the configuration of network %s has changed since its attachments were made; repair uses the old "+
			"one, and `fairlead del` and `fairlead add` apply the change", network)
	}
	for _, del := range begun {
		a.Note("%s finishes a del, once the plugin that failed is installed and works", del)
	}
	if count[repair.Broken] > len(begun) {
		a.NoteAll(advice.NotRepaired(report.Findings))
	}
	if count[repair.Gone] > 0 {
		a.Note("`fairlead gc --gone` removes what dead containers left")
	}
	if count[repair.Offline] > 0 {
		a.Note("repair does not change what the reference plugins made; `fairlead repair --adopt` attaches it " +
			"again with fairlead's plugins and the same addresses")
	}
}

// finding returns what to print of an attachment.
func finding(f repair.Finding, name string, s term.Style) *term.Tree {
	state := s.Doubt(string(f.State))
	switch f.State {
	case repair.Repaired, repair.InOrder, repair.Adopted:
		state = s.Good(string(f.State))
	case repair.Broken, repair.Offline:
		state = s.Bad(string(f.State))
	}
	node := &term.Tree{Text: term.Sprintf("%s %s", name, state)}
	for _, line := range f.Repaired {
		node.Add("%s", line)
	}
	for at := 0; at < len(f.Differences); {
		first := f.Differences[at]
		same := 1
		for first.Resource != "" && at+same < len(f.Differences) && first.SameResource(f.Differences[at+same]) {
			same++
		}
		printDifferences(node, f.Differences[at:at+same], s)
		at += same
	}
	for _, line := range f.NotOurs {
		node.Add("%s", s.Doubt("not made by fairlead, not repaired: "+line))
	}
	return node
}

// printDifferences adds the differences of one resource, or one that is of no resource.
func printDifferences(node *term.Tree, all spec.Differences, s term.Style) {
	paint, before := s.Bad, ""
	switch first := all[0]; {
	case first.Repair == spec.ByRepair:
		paint = s.Doubt
	case first.Resource != "":
		before = "cannot be restored: "
	}
	if len(all) == 1 {
		node.Add("%s", paint(before+all[0].Error()))
		return
	}
	kid := node.Add("%s", paint(before+all[0].Resource))
	const most = 3
	for i, d := range all {
		if i == most && len(all) > most+1 {
			kid.Add("%s", paint(fmt.Sprintf("and %d more (-o json has all)", len(all)-most)))
			break
		}
		kid.Add("%s", paint(d.Text))
	}
}
