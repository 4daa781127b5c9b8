package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/calls"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/repair"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// A readiness is the answer of status.
type readiness struct {
	Network string    `json:"network"`
	Ready   bool      `json:"ready"` // for new attachments
	Code    spec.Code `json:"code,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Hint    string    `json:"hint,omitempty"`

	Addresses []room    `json:"addresses,omitempty"` // what the allocators of this program have left
	NotAsked  []string  `json:"notAsked,omitempty"`  // plugins whose version has no STATUS
	Existing  *existing `json:"existing,omitempty"`  // unless they could not be looked at
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status [NET [NETNS]]", GroupID: "attach", Args: operands("[NET] [NETNS]"),
		Short: "Say whether a network can serve an add, and how many attachments are broken",
		Long: `Say whether NET, or each network, can serve a new attachment, and how many of its attachments are broken. The
exit status concerns new attachments only; for several networks it is that of the first one that is not ready. NET is
the name of a network, or the path of a file that defines one.

Fairlead's plugins are asked whatever the cniVersion of NET is. Plugins of others are asked only if NET allows 1.1.0,
the version that brought STATUS. NETNS is accepted for compatibility with cnitool and has no effect.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.statusOfAll()
			}
			if err := a.noteAbsent(args); err != nil {
				return err
			}
			n, err := a.networkOrFile(args[0])
			if err != nil {
				return err
			}
			r, err := a.statusOf(n)
			if r == nil {
				return err
			}
			if a.json() {
				a.status = r.refused(err)
				return printJSON(a.stdout, r)
			}
			r.print(a)
			return err
		},
		ValidArgsFunction: completeTarget,
	}
}

// statusOfAll says of each network whether it is ready.
func (a *app) statusOfAll() error {
	lists, problems := spec.LoadDir(confDir())
	if attached, _ := (&attach.Runtime{}).List(defaultNetwork); len(attached) > 0 || len(lists) == 0 {
		if !slices.ContainsFunc(lists, func(l *spec.List) bool { return l.Name == defaultNetwork }) {
			l, err := spec.ParseList(defaultList(ipv6Here()))
			if err != nil {
				return err
			}
			lists = append(lists, l)
		}
	}
	doc := struct {
		Networks []*readiness  `json:"networks"`
		Problems []fileProblem `json:"problems,omitempty"`
	}{Networks: []*readiness{}}
	for _, l := range lists {
		n := &network{List: l, builtIn: true}
		if l.File != "" {
			n = a.loaded(l)
		}
		r, err := a.statusOf(n)
		if r == nil {
			return err
		}
		if exit := r.refused(err); a.status == exitOK {
			a.status = exit
		}
		if doc.Networks = append(doc.Networks, r); a.json() {
			continue
		}
		if s := a.style(a.stdout); err != nil {
			node := &tree{text: sprintf("%s is %s for new attachments: %s", n.Name, s.bad("not ready"), lines(err))}
			if r.Hint != "" {
				node.add("%s", r.Hint)
			}
			node.print(a.stdout, s)
		}
		r.print(a)
	}
	for _, p := range problems {
		doc.Problems = append(doc.Problems, problem(p))
		if !a.json() {
			a.note("%s", lines(p))
		}
	}
	if a.status == exitOK && len(problems) > 0 {
		a.status = exitFailure
	}
	if a.json() {
		return printJSON(a.stdout, doc)
	}
	return nil
}

// statusOf asks whether a network is ready. The error is why it is not; without an answer, why nobody could be asked.
func (a *app) statusOf(n *network) (*readiness, error) {
	rt, err := a.runtime(n)
	if err != nil {
		return nil, err
	}
	r := &readiness{Network: n.Name}
	a.warnOfOverlaps(n, rt)
	r.Addresses, r.NotAsked, err = n.serves(a.interruptible(), rt)
	if a.interruptible().Err() != nil {
		return nil, err
	}
	if r.Ready = err == nil; r.Ready {
		for _, problem := range n.tried() {
			a.note("warning: %v", problem)
		}
	}
	r.Existing = a.existing(a.interruptible(), n)
	return r, err
}

// refused takes down why a network is not ready, and returns the exit status of that.
func (r *readiness) refused(err error) (exit int) {
	if err == nil {
		return exitOK
	}
	r.Reason = err.Error()
	var doc *spec.Error
	if errors.As(err, &doc) {
		r.Code = doc.Code
	}
	if doc != nil && errors.As(err, new(*invoke.ExecError)) {
		r.Reason = doc.Msg // without who said it
	}
	exit, r.Hint = explain(err)
	return exit
}

// print prints what is known of a network beside why it is not ready.
func (r *readiness) print(a *app) {
	s := a.style(a.stdout)
	if len(r.NotAsked) > 0 && r.Ready {
		a.note("STATUS came with CNI 1.1.0, so these plugins were not asked: %s", strings.Join(r.NotAsked, ", "))
	}
	if r.Ready {
		a.print("%s is %s for new attachments\n", r.Network, s.good("ready"))
		for _, left := range r.Addresses {
			a.print("%s has %s of %s addresses left\n", left.IPAM, left.Free, left.Size)
		}
	}
	if r.Existing != nil {
		a.print("%s\n", r.Existing.text(s))
		r.Existing.hints(a, r.Network)
	}
}

// serves is why n would not serve an ADD, else which plugins were not asked about that.
func (n *network) serves(ctx context.Context, rt *attach.Runtime) (left []room, notAsked []string, err error) {
	if err := errors.Join(n.missing()...); err != nil {
		return nil, nil, err
	}
	if left, err = rooms(ctx, n.List); err != nil {
		return nil, nil, err
	}
	var speak [][]spec.Version
	for _, p := range n.Plugins {
		one := *n.List
		one.Plugins = []*spec.Conf{p}
		if n.own(p) {
			one.CNIVersions = append(slices.Clone(one.CNIVersions), spec.V110)
		}
		versions, err := rt.Versions(ctx, &one)
		if err != nil {
			return nil, nil, err
		}
		speak = append(speak, versions[p.Type])
		v, noVersion := spec.Select(&one, versions[p.Type])
		if noVersion == nil && !v.AtLeast(spec.V110) {
			notAsked = append(notAsked, p.Type)
			continue
		}
		if err := rt.Status(invoke.WithEnv(ctx, calls.Variable+"=off"), &one); err != nil {
			return nil, nil, err
		}
		if noVersion != nil {
			return nil, nil, fmt.Errorf("plugin %s: %w", p.Type, noVersion)
		}
	}
	if err := n.headless(); err != nil { // which a plugin is not told
		return nil, nil, err
	}
	for i, p := range n.Plugins { // nor is a chain its capabilities
		if err := p.Undeclared(); err != nil {
			return nil, nil, fmt.Errorf("plugins[%d].%w", i, err)
		}
	}
	if _, err := spec.Select(n.List, speak...); err != nil {
		return nil, nil, err
	}
	return left, notAsked, nil
}

// own reports whether what runs for a plugin of n, and for its IPAM plugin, is of this project.
func (n *network) own(p *spec.Conf) bool {
	dirs, _ := search(n)
	return !slices.ContainsFunc([]string{p.Type, p.IPAMType}, func(typ string) bool {
		path, err := invoke.Find(typ, dirs)
		return err == nil && !ours(path)
	})
}

// existing is how many attachments a network has, and in which state.
type existing struct {
	Attached int `json:"attached"`
	Broken   int `json:"broken"`
	Gone     int `json:"gone"`    // the network namespace is, or the address is another's
	Unknown  int `json:"unknown"` // another program attached them

	Unread int `json:"unread,omitempty"` // entries of the cache that cannot be read, not counted otherwise
}

// existing looks at what is attached to n; nil where that is not possible.
func (a *app) existing(ctx context.Context, n *network) *existing {
	defer a.logLater()()
	r := repair.Repairer{
		Runtime: &attach.Runtime{Stderr: newScreen(a.stderr)}, Plugins: plugin.All(), Foreign: foreign(),
		External: externals(), Network: n.Name, Now: func() []*spec.List { return []*spec.List{n.List} }, DryRun: true,
	}
	report, err := r.Run(ctx)
	if err != nil {
		a.note("warning: what is attached could not be looked at: %v", err)
		return nil
	}
	for _, p := range report.Problems {
		a.note("warning: %s", p)
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

func (e *existing) text(s style) shown {
	var parts []shown
	add := func(n int, paint func(string) shown, state string) {
		if n > 0 {
			parts = append(parts, paint(fmt.Sprintf("%d %s", n, state)))
		}
	}
	add(e.Attached-e.Broken-e.Gone-e.Unknown, printable, "in order")
	add(e.Broken, s.bad, "broken")
	add(e.Gone, s.doubt, "gone")
	add(e.Unknown, s.doubt, "unknown, for another program attached them")
	add(e.Unread, s.doubt, "of which nothing is known, for their entries in the cache cannot be read")
	if len(parts) == 0 {
		return "nothing is attached"
	}
	text := shown("attachments: ") + parts[0]
	for _, part := range parts[1:] {
		text += ", " + part
	}
	return text
}

func (e *existing) hints(a *app, network string) {
	if e.Broken > 0 {
		a.note("`fairlead repair --network %[1]s --dry-run` says what is broken; without --dry-run it repairs what it can",
			network)
	}
	if e.Gone > 0 {
		a.note("`fairlead gc %s --gone` removes what dead containers left", network)
	}
}

// A room is how many addresses an IPAM plugin has left.
type room struct {
	IPAM string `json:"ipam"`
	Free string `json:"free"`
	Size string `json:"size"`
}

// rooms asks the allocators that are this program's own, which find out what is wrong with their part of
// the configuration too; what another program has left, only it knows.
func rooms(ctx context.Context, l *spec.List) ([]room, error) {
	all := plugin.All()
	var rs []room
	for _, conf := range l.WrittenOut().Plugins {
		for _, p := range all {
			if p.Name != conf.Type || conf.IPAMType == "" {
				continue
			}
			free, size, ok, err := p.Room(ctx, all, conf)
			if err != nil {
				return nil, fmt.Errorf("plugin %s: %w", conf.IPAMType, err)
			}
			if ok {
				rs = append(rs, room{conf.IPAMType, free.String(), size.String()})
			}
		}
	}
	return rs, nil
}
