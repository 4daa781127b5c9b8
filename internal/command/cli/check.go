package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// checked is the answer of check about one attachment.
type checked struct {
	attached.Key
	OK    bool     `json:"ok"`
	Drift []string `json:"drift,omitempty"`

	Differences spec.Differences `json:"differences,omitempty"` // the same as values

	Problems []string `json:"problems,omitempty"` // errors of plugins that could not check
}

func checkCommand(a *app.App) *cobra.Command {
	var f target.Flags
	c := &cobra.Command{
		Use: "check [NET NETNS | CONTAINER | NET]", GroupID: "attach", Args: app.Operands("[NET] [NETNS]"),
		Short: "Compare attachments with what add made; exit status 3 if they differ",
		Long: `Compare attachments with what add made. All plugins of the network are asked, and every difference is printed.
NET and NETNS name one attachment. A container (a pod as NAMESPACE/NAME, a name, an ID or its beginning, a network
namespace) stands for all of its attachments, and NET for those of the network. Without arguments, the command compares
all attachments in the cache of this host. Nothing is changed.

An attachment whose container is gone is counted, but it is not a difference. fairlead gc --gone removes what it left.

Exit status: 0 no difference, 1 an attachment could not be checked, 3 a difference, 4 no such attachment.`,
		Example: `  fairlead check                     all attachments
  fairlead check default/web-0       the attachments of a pod
  fairlead check lan c1              the interface eth0 of the network namespace c1 on lan`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) < 2 {
				if f != (target.Flags{}) {
					return app.Misused(c, errors.New("-i and --container-id need NET and NETNS"))
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

// checkOne checks the attachment that NET, NETNS and the flags name.
func checkOne(a *app.App, f target.Flags, args []string) error {
	t, err := target.Ready(a, f, args, false)
	if err != nil {
		return err
	}
	if err := dead(t); err != nil {
		return err
	}
	was := t.Entry()
	host, err := snapshot.Look()
	if err != nil {
		return err
	}
	defer host.Close()
	sharing := sdk.Share(host)
	w, err := sharing.Open(t.Owner(), t.Netns)
	if err == nil {
		defer w.Container.Close()
	}
	doc, said, rest := compare(a, t, was, sharing, w)
	if errors.Is(rest, attach.ErrCorrupt) {
		const hint = "`fairlead del %[1]s` moves that file aside and detaches the container. Then attach it again " +
			"with `fairlead add %[1]s`, or with the runtime that attached it."
		return app.Fail(app.ExitFailure, fmt.Sprintf(hint, t.Typed(args)), "%w", rest)
	}
	if doc.OK && rest != nil {
		return rest
	}
	if !doc.OK {
		a.Status = app.ExitFault
	} else if was != nil {
		if d := target.Differences(was.AttachedBy(t.List), t.List); len(d) > 0 {
			a.Note("the configuration of network %s has changed since this was attached (%s); the attachment "+
				"matches the present configuration", t.Name, strings.Join(d, "; "))
		}
	}
	if a.JSON() {
		return a.PrintJSON(doc)
	}
	if !doc.OK {
		return app.Fail(app.ExitFault, advice.Fixing(t, args), "%s", strings.Join(said, "\n"))
	}
	return nil
}

// compare runs CHECK of an attachment's plugins. It returns the differences as a document and as lines to print. The
// error is that of plugins that could not check. If the plugins find nothing, compare looks at the links in the
// result of ADD, because CHECK of other projects' plugins does not report a link that is down. The container is open in
// w; w is nil if its namespace cannot be opened.
func compare(a *app.App, t *target.Target, was *attach.Cached, sharing *sdk.Sharing,
	w *kernel.World) (doc checked, said []string, rest error) {
	ctx := sharing.In(a.Interruptible(), w)
	found, rest := byPlugin(t.Runtime.Check(ctx, t.List, t.Attachment, attach.Continue()))
	if len(found) == 0 && was != nil {
		if w == nil {
			w = sharing.Host
		}
		if _, off := repair.Links(w, was); len(off) > 0 {
			found = []pluginFound{{differences: off}}
		}
	}
	doc = checked{Key: t.Document(), OK: len(found) == 0}
	for _, d := range found {
		lines := d.differences.Sentences()
		doc.Drift = append(doc.Drift, lines...)
		doc.Differences = append(doc.Differences, d.differences...)
		if said = append(said, lines...); d.by != "" {
			said = append(said, d.by)
		}
	}
	if rest != nil {
		doc.Problems = spec.DifferencesIn(rest).Lines()
		said = append(append(said, "these could not be checked:"), doc.Problems...)
	}
	return doc, said, rest
}

// dead fails if the namespace of t does not exist, or is not the one that was attached. The hint says what to do.
func dead(t *target.Target) error {
	was := t.Entry()
	err := attached.IsNetns(t.Netns)
	switch {
	case err == nil && was != nil && attached.SamePath(was.Netns, t.Netns) && attached.IsGone(*was):
		err = fmt.Errorf("network namespace %s is not the namespace that was attached", t.Netns)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case was == nil:
		return app.Fail(app.ExitNotFound, "`fairlead ls "+t.Name+"` lists the attachments and their "+
			"namespaces.", "%w", err)
	}
	return app.Fail(app.ExitNotFound, "`fairlead gc "+t.Name+" --gone` removes what the dead container left.",
		"%s: %w", was.Owner(),
		err)
}

// differencesOf returns the differences that a plugin's CHECK found; ok is false if the plugin could not check. The
// specification's error codes (below 100) mean that it could not. A difference has a code of the plugin's own, or none.
// Plugins of other projects send no differences: their message counts as one.
func differencesOf(err error) (found spec.Differences, ok bool) {
	var doc *spec.Error
	switch {
	case err == nil:
		return nil, true
	case !errors.As(err, &doc) || doc.Code < 100 && doc.Code != 0:
		return nil, false
	case len(doc.Differences) > 0:
		return doc.Differences, true
	}
	return spec.Differences{{Text: doc.Msg}}, true
}

// pluginFound is the differences that one plugin found, and the plugin.
type pluginFound struct {
	differences spec.Differences
	by          string
}

// byPlugin returns the differences plugin by plugin, and the errors of plugins that could not check. A difference that
// an earlier plugin reported, such as a missing link, is not repeated.
func byPlugin(err error) (found []pluginFound, rest error) {
	all := []error{err}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		if _, one := err.(*invoke.ExecError); !one {
			all = many.Unwrap()
		}
	}
	var said spec.Differences
	again := func(d spec.Difference) bool {
		return slices.ContainsFunc(said, func(before spec.Difference) bool {
			return before.Error() == d.Error() || d.LacksLink() && before.LacksLink() && before.Want == d.Want
		})
	}
	var errs []error
	for _, err := range all {
		differences, ok := differencesOf(err)
		if !ok {
			errs = append(errs, err)
		}
		differences = slices.DeleteFunc(differences, again)
		if len(differences) == 0 {
			continue
		}
		said = append(said, differences...)
		d := pluginFound{differences: differences}
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
