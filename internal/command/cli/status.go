package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/command/cli/validate"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// readiness is the answer of status about one network.
type readiness struct {
	Network string    `json:"network"`
	Ready   bool      `json:"ready"` // for new attachments
	Code    spec.Code `json:"code,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Hint    string    `json:"hint,omitempty"`

	Addresses []netconf.Room `json:"addresses,omitempty"` // free addresses, of this program's allocators
	NotAsked  []string       `json:"notAsked,omitempty"`  // plugins whose version has no STATUS
	Existing  *existing      `json:"existing,omitempty"`  // nil: the attachments could not be checked
}

func statusCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "status [NET [NETNS]]", GroupID: "attach", Args: app.Operands("[NET] [NETNS]"),
		Short: "Say whether a network can serve an add, and how many attachments are broken",
		Long: `Say whether NET, or each network, can serve a new attachment, and how many of its attachments are broken. Nothing
is changed. NET is the name of a network, or the path of a file that defines one.

Fairlead's plugins are asked whatever the cniVersion of NET is. Plugins of others are asked only if NET allows 1.1.0,
the version that brought STATUS. NETNS is accepted for compatibility with cnitool and has no effect.

Exit status: 0 ready for new attachments, 1 not ready, or ready and an attachment in the cache cannot be read, 4 no such
network, 5 try again. For all networks it is that of the first one that is not ready, or 1 if the file of a network cannot
be read.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return statusOfAll(a)
			}
			if err := attached.NoteAbsent(a, args); err != nil {
				return err
			}
			a.Orphans = true
			n, err := netconf.FindOrFile(a, args[0])
			if err != nil {
				return err
			}
			s, err := snapshot.Read(n.Name)
			if err != nil {
				return err
			}
			defer s.Close()
			noteUnread(a, n.Name, s)
			r, err := statusOf(a, n, s)
			if r == nil {
				return err
			}
			if exit := r.refused(err); exit != app.ExitOK {
				a.Status = exit
			}
			if a.JSON() {
				return a.PrintJSON(r)
			}
			r.print(a)
			return err
		},
		ValidArgsFunction: target.CompleteTarget,
	}
}

// statusOfAll prints the status of each network.
func statusOfAll(a *app.App) error {
	all, err := snapshot.Read("")
	if err != nil {
		return err
	}
	defer all.Close()
	lists, problems := netconf.Lists(len(all.On(netconf.DefaultNetwork)) > 0)
	if len(lists) == 0 {
		lists, _ = netconf.Lists(true)
	}
	doc := struct {
		Networks []*readiness          `json:"networks"`
		Problems []netconf.FileProblem `json:"problems,omitempty"`
	}{Networks: []*readiness{}}
	for _, n := range networksOf(a, lists, all) {
		r, err := statusOf(a, n, all)
		if r == nil {
			return err
		}
		if exit := r.refused(err); a.Status == app.ExitOK {
			a.Status = exit
		}
		if doc.Networks = append(doc.Networks, r); a.JSON() {
			continue
		}
		if err != nil {
			r.printRefusal(a, err)
		}
		r.print(a)
	}
	for _, p := range problems {
		doc.Problems = append(doc.Problems, netconf.ProblemOf(p))
		if !a.JSON() {
			a.Note("%s", term.Lines(p))
		}
	}
	noteUnread(a, "", all)
	for _, p := range all.Unread {
		doc.Problems = append(doc.Problems, netconf.ProblemOf(p))
	}
	if a.Status == app.ExitOK && len(problems) > 0 {
		a.Status = app.ExitFailure
	}
	if a.JSON() {
		return a.PrintJSON(doc)
	}
	return nil
}

// networksOf returns the networks of lists, and those that only the cache knows.
func networksOf(a *app.App, lists []*spec.List, all *snapshot.Snapshot) (networks []*netconf.Network) {
	for _, l := range lists {
		n := &netconf.Network{List: l, BuiltIn: true}
		if l.File != "" {
			n = netconf.Loaded(a, l)
		}
		networks = append(networks, n)
	}
	for _, l := range all.Remembered(lists) {
		networks = append(networks, &netconf.Network{List: l, Remembered: true})
	}
	return networks
}

// noteUnread names the files of the cache that cannot be read.
func noteUnread(a *app.App, network string, s *snapshot.Snapshot) {
	app.Warn(a, s.Problems(a, network))
}

// statusOf asks whether a network is ready. The error says why it is not. If the answer is nil, the network could
// not be asked.
func statusOf(a *app.App, n *netconf.Network, all *snapshot.Snapshot) (*readiness, error) {
	if n.Remembered {
		r := &readiness{Network: n.Name, Existing: existingOn(a.Interruptible(), a, n, all)}
		return r, app.Fail(app.ExitFailure, "`fairlead doctor` has the command that writes the file again.",
			"no usable file in %s defines network %s", netconf.ConfDir(), n.Name)
	}
	rt, err := netconf.Runtime(a, n)
	if err != nil {
		return nil, err
	}
	r := &readiness{Network: n.Name}
	netconf.WarnOfOverlaps(a, n, rt)
	r.Existing = existingOn(a.Interruptible(), a, n, all)
	if s, ok := rt.Stderr.(term.Screen); ok && r.Existing.wired() {
		s.Said.Store(term.Doubtful, true) // with the name of the link, which STATUS does not know
	}
	r.Addresses, r.NotAsked, err = n.Serves(a.Interruptible(), rt)
	if a.Interruptible().Err() != nil {
		return nil, err
	}
	if r.Ready = err == nil; r.Ready {
		app.Warn(a, validate.Tried(n))
	}
	return r, err
}

// refused records why a network is not ready, and returns the exit status for that.
func (r *readiness) refused(err error) (exit int) {
	if err == nil {
		return app.ExitOK
	}
	r.Reason = err.Error()
	var doc *spec.Error
	if errors.As(err, &doc) {
		r.Code = doc.Code
	}
	if doc != nil && errors.As(err, new(*invoke.ExecError)) {
		r.Reason = doc.Msg // without the plugin's name
	}
	exit, r.Hint = advice.Explain(err)
	return exit
}

// printRefusal prints why a network is not ready.
func (r *readiness) printRefusal(a *app.App, err error) {
	s := a.Style(a.Stdout)
	node := &term.Tree{Text: term.Sprintf("%s is %s for new attachments: %s", r.Network, s.Bad("not ready"),
		term.Lines(err))}
	if r.Hint != "" {
		node.Add("%s", r.Hint)
	}
	a.Draw(node)
}

// print prints what is known of a network, except why it is not ready.
func (r *readiness) print(a *app.App) {
	s := a.Style(a.Stdout)
	if len(r.NotAsked) > 0 && r.Ready {
		a.Note("STATUS came with CNI 1.1.0, so these plugins were not asked: %s", strings.Join(r.NotAsked, ", "))
	}
	if r.Ready {
		a.Print("%s is %s for new attachments\n", r.Network, s.Good("ready"))
		for _, left := range r.Addresses {
			a.Print("%s has %s of %s addresses left\n", left.IPAM, left.Free, left.Size)
		}
	}
	if r.Existing != nil {
		a.Print("%s\n", r.Existing.text(s))
		r.Existing.hints(a, r.Network)
	}
}

// existing counts the attachments of a network by their state.
type existing struct {
	Attached int `json:"attached"`
	Broken   int `json:"broken"`
	Gone     int `json:"gone"`    // the network namespace is gone, or the address belongs to another container
	Unknown  int `json:"unknown"` // another program attached them

	Unread int `json:"unread,omitempty"` // entries of the cache that cannot be read; not counted in the others
}

// existingOn counts the attachments of n. It returns nil if that is not possible.
func existingOn(ctx context.Context, a *app.App, n *netconf.Network, all *snapshot.Snapshot) *existing {
	defer a.LogLater()()
	r := all.DryRepairer(all.On(n.Name))
	r.Runtime.Stderr = term.NewScreen(a.Stderr)
	r.Network, r.Now = n.Name, func() []*spec.List { return []*spec.List{n.List} }
	report, err := r.Run(ctx)
	if err != nil {
		if attached.Unseen(all.Unread) == nil { // noteUnread says that
			a.Note("warning: the attachments could not be checked: %v", err)
		}
		return nil
	}
	e := &existing{Attached: len(report.Findings), Unread: report.Unread}
	for _, f := range report.Findings {
		switch f.State {
		case repair.ToRepair, repair.Broken, repair.Offline:
			e.Broken++
		case repair.Gone:
			e.Gone++
		case repair.Foreign, repair.Handed:
			e.Unknown++
		}
	}
	return e
}

// wired reports whether there are attachments whose rules were examined.
func (e *existing) wired() bool { return e != nil && e.Attached > e.Gone+e.Unknown }

func (e *existing) text(s term.Style) term.Shown {
	var parts []term.Shown
	add := func(n int, paint func(string) term.Shown, state string) {
		if n > 0 {
			parts = append(parts, paint(fmt.Sprintf("%d %s", n, state)))
		}
	}
	add(e.Attached-e.Broken-e.Gone-e.Unknown, term.Printable, "in order")
	add(e.Broken, s.Bad, "broken")
	add(e.Gone, s.Doubt, "gone")
	add(e.Unknown, s.Doubt, "unknown, because another program attached them")
	add(e.Unread, s.Doubt, "unreadable in the cache")
	if len(parts) == 0 {
		return "nothing is attached"
	}
	text := term.Shown("attachments: ") + parts[0]
	for _, part := range parts[1:] {
		text += ", " + part
	}
	return text
}

func (e *existing) hints(a *app.App, network string) {
	if e.Broken > 0 {
		a.Note("`fairlead repair --network %[1]s --dry-run` lists what is broken; without --dry-run it repairs "+
			"what it can",
			network)
	}
	if e.Gone > 0 {
		a.Note("`fairlead gc %s --gone` removes what dead containers left", network)
	}
}
