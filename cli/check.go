package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/advice"
	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/cli/target"
	"github.com/fairlead-cni/fairlead/cli/term"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/repair"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// A checked is the answer of check.
type checked struct {
	attached.Key
	OK    bool     `json:"ok"`
	Drift []string `json:"drift,omitempty"`

	Problems []string `json:"problems,omitempty"` // of plugins that could not look
}

func checkCommand(a *app.App) *cobra.Command {
	var f target.Flags
	c := &cobra.Command{
		Use: "check [NET NETNS | CONTAINER | NET]", GroupID: "attach", Args: app.Operands("[NET] [NETNS]"),
		Short: "Compare attachments with what add made; exit status 3 if they differ",
		Long: `Compare attachments with what add made. All plugins of the network are asked, and every difference is printed.
NET and NETNS name one attachment. A container (a pod as NAMESPACE/NAME, a name, an ID or its beginning, a network
namespace) stands for all of its attachments, and NET for those of the network. Without arguments, all attachments
that the cache of this host remembers are compared.

An attachment whose container is gone is counted and is no difference: fairlead gc --gone removes what it left.`,
		Example: `  fairlead check                     all attachments
  fairlead check default/web-0       those of a pod
  fairlead check lan c1              the interface eth0 of the network namespace c1 on lan`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) < 2 {
				if f != (target.Flags{}) {
					return app.Misused(c, errors.New("-i and --container-id go with NET and NETNS"))
				}
				return checkMany(a, strings.Join(args, ""))
			}
			return checkOne(a, f, args)
		},
	}
	f.Register(c)
	c.ValidArgsFunction = target.CompleteTarget
	return c
}

// checkOne checks the attachment that NET, NETNS and the flags say.
func checkOne(a *app.App, f target.Flags, args []string) error {
	t, err := target.Ready(a, f, args, false)
	if err != nil {
		return err
	}
	if err := dead(t); err != nil {
		return err
	}
	was := t.Former()
	doc, said, rest := compare(a, t, was)
	if errors.Is(rest, attach.ErrCorrupt) {
		const hint = "`fairlead del %[1]s` sets that file aside and detaches all the same; then `fairlead add " +
			"%[1]s`, " +
			"or the runtime that attached it, attaches it anew."
		return app.Fail(app.ExitFailure, fmt.Sprintf(hint, t.Typed(args)), "%w", rest)
	}
	if doc.OK && rest != nil {
		return rest
	}
	if !doc.OK {
		a.Status = app.ExitDrift
	} else if was != nil {
		if d := target.Differences(was.AttachedBy(t.List), t.List); len(d) > 0 {
			a.Note("network %s is configured otherwise now than when this was attached to it (%s); nothing differs "+
				"from "+
				"what the file says now", t.Name, strings.Join(d, "; "))
		}
	}
	if a.JSON() {
		return term.PrintJSON(a.Stdout, doc)
	}
	if !doc.OK {
		return app.Fail(app.ExitDrift, advice.Mending(t, args), "%s", strings.Join(said, "\n"))
	}
	return nil
}

// compare asks the plugins of an attachment what differs, and says it, too, in lines. The error is of those that could
// not look. Where they find nothing, the links are looked at that ADD answered with: CHECK of other plugins says
// nothing of one that is down.
func compare(a *app.App, t *target.Target, was *attach.Cached) (doc checked, said []string, rest error) {
	found, rest := drifts(t.Runtime.Check(a.Interruptible(), t.List, t.Attachment, attach.Continue()))
	if len(found) == 0 && was != nil {
		if off := linksOff(was); len(off) > 0 {
			found = []drifted{{lines: off}}
		}
	}
	doc = checked{Key: t.Document(), OK: len(found) == 0}
	for _, d := range found {
		doc.Drift = append(doc.Drift, d.lines...)
		if said = append(said, d.lines...); d.by != "" {
			said = append(said, d.by)
		}
	}
	if rest != nil {
		doc.Problems = strings.Split(rest.Error(), "\n")
		said = append(append(said, "and what could not be looked at:"), doc.Problems...)
	}
	return doc, said, rest
}

// linksOff are the links of an attachment that carry nothing, as far as its namespaces can be opened.
func linksOff(c *attach.Cached) []string {
	host, err := kernel.Open("")
	if err != nil {
		return nil
	}
	defer host.Close()
	w := &kernel.World{Host: host}
	if ns, err := kernel.Open(c.Netns); c.Netns != "" && err == nil {
		defer ns.Close()
		w.Container = ns
	}
	return repair.LinksOff(w, c)
}

// dead says that the namespace does not exist, or is another than the one that was attached, and what is done about
// that.
func dead(t *target.Target) error {
	was := t.Former()
	err := attached.IsNetns(t.Netns)
	switch {
	case err == nil && was != nil && attached.SamePath(was.Netns, t.Netns) && attached.IsGone(*was):
		err = fmt.Errorf("network namespace %s is not the namespace that was attached", t.Netns)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case was == nil:
		return app.Fail(app.ExitNotFound, "`fairlead ls "+t.Name+"` lists what is attached, and where.", "%w", err)
	}
	return app.Fail(app.ExitNotFound, "`fairlead gc "+t.Name+" --gone` removes what the dead one left.",
		"%s: %w", was.Owner(),
		err)
}

// drift are the differences that a plugin's CHECK found; ok is false where it found none because it could
// not look. The codes of the specification are reasons for not having looked; a difference has one of the
// plugin's own, or none.
func drift(err error) (found []string, ok bool) {
	var doc *spec.Error
	switch {
	case err == nil:
		return nil, true
	case !errors.As(err, &doc) || doc.Code < 100 && doc.Code != 0:
		return nil, false
	}
	for line := range strings.Lines(doc.Msg) {
		for _, part := range strings.Split(strings.TrimSpace(line), "; ") {
			// else it goes on with what is wrong with the same thing
			if len(found) == 0 || strings.Contains(part, ": ") {
				found = append(found, part)
			} else {
				found[len(found)-1] += "; " + part
			}
		}
	}
	return found, true
}

// A drifted is what differs for one plugin, and which that is.
type drifted struct {
	lines []string
	by    string
}

// drifts are the differences by plugin, in their order, and the errors of those that could not look. What a plugin
// before has said already, as of a link that is gone, is not said again.
func drifts(err error) (found []drifted, rest error) {
	all := []error{err}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		if _, one := err.(*invoke.ExecError); !one {
			all = many.Unwrap()
		}
	}
	var said []string
	again := func(line string) bool {
		_, what, _ := strings.Cut(line, ": ")
		names := func(before string) bool { return strings.Contains(before, what) }
		return slices.Contains(said, line) || strings.HasSuffix(what, " does not exist") &&
			slices.ContainsFunc(said, names)
	}
	var errs []error
	for _, err := range all {
		lines, ok := drift(err)
		if !ok {
			errs = append(errs, err)
		}
		lines = slices.DeleteFunc(lines, again)
		if len(lines) == 0 {
			continue
		}
		said = append(said, lines...)
		d := drifted{lines: lines}
		var ran *invoke.ExecError
		if errors.As(err, &ran) {
			d.by = fmt.Sprintf("(plugin %s; %s)", ran.Type, ran.Path)
		}
		found = append(found, d)
	}
	if len(errs) == 1 {
		return found, errs[0]
	}
	return found, errors.Join(errs...)
}
