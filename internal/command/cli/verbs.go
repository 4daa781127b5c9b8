package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/spf13/cobra"
)

func addCommand(a *app.App) *cobra.Command {
	var f target.Flags
	c := &cobra.Command{
		Use: "add NET NETNS", GroupID: "attach", Args: app.Operands("NET NETNS"),
		Short: "Attach a network namespace to a network, and print the result",
		RunE: func(c *cobra.Command, args []string) error {
			t, err := target.Ready(a, f, args, true)
			if err != nil {
				return err
			}
			if err := unknownToCache(t, args); err != nil {
				return err
			}
			app.Warn(a, t.Undeclared())
			netconf.WarnOfOverlaps(a, t.Network, t.Runtime)
			res, err := t.Network.Add(a.Interruptible(), t.Runtime, t.Attachment)
			if err != nil {
				return err
			}
			b, err := res.Encode(res.CNIVersion)
			if err != nil {
				return err
			}
			var out bytes.Buffer
			if err := json.Indent(&out, bytes.TrimSpace(b), "", "    "); err != nil {
				return err
			}
			_, err = a.Stdout.Write(append(term.PrintableJSON(out.Bytes()), '\n'))
			return err
		},
	}
	f.Register(c)
	c.ValidArgsFunction = target.CompleteTarget
	return c
}

// unknownToCache refuses an ADD of what stands already, although the cache does not know it: the roll-back of that ADD
// would remove it.
func unknownToCache(t *target.Target, args []string) error {
	w, err := restore.OpenHost()
	if err != nil {
		return err
	}
	defer w.Close()
	o := t.Owner()
	stands := restore.WasAttached(w, o) && restore.Vanished(w.Host)(o, t.Netns) == nil
	if stands && t.Entry() == nil { // the runtime refuses what the cache knows
		return app.Fail(app.ExitFailure, "To attach it anew: `fairlead del "+t.Typed(args)+"`, and then add it again.",
			"add %s: is attached already, and the cache has no entry of it; nothing was changed", o)
	}
	return nil
}

func delCommand(a *app.App) *cobra.Command {
	var f target.Flags
	var goOn bool
	c := &cobra.Command{
		Use: "del NET NETNS", GroupID: "attach", Args: app.Operands("NET NETNS"),
		Short: "Detach a network namespace; succeeds if it is detached already",
		RunE: func(c *cobra.Command, args []string) error {
			a.Orphans = true
			t, err := target.Ready(a, f, args, false)
			if err != nil {
				return err
			}
			if err := target.AsAttached(a, t); err != nil {
				return err
			}
			var options []attach.Option
			if goOn {
				options = append(options, attach.Continue())
			}
			if err := t.Runtime.Del(a.Interruptible(), t.List, t.Attachment, options...); err != nil {
				return stopped(t, err, args, goOn)
			}
			if a.JSON() {
				return a.PrintJSON(t.Document())
			}
			return nil
		},
	}
	f.Register(c)
	c.Flags().BoolVar(&goOn, "continue", false,
		"continue if a plugin fails, so that the other plugins release what they hold")
	c.ValidArgsFunction = target.CompleteTarget
	return c
}

// stopped adds to the error of a DEL what was removed, and what is left.
func stopped(t *target.Target, err error, args []string, goOn bool) error {
	exit, hint := advice.Explain(err)
	was, ran := t.Entry(), new(invoke.ExecError)
	switch failed := errors.As(err, &ran); {
	case was == nil || !failed && !errors.Is(err, invoke.ErrNotFound):
		return err
	case len(was.Left) > 0:
		hint += fmt.Sprintf(" The interface is gone, and the other plugins have released what they held. What %s "+
			"holds is left. `fairlead del %s` removes that once the plugin is installed and "+
			"works.", strings.Join(was.Left, ", "), t.Typed(args))
	case goOn || len(t.Plugins) == 1 || failed && ran.Type == t.Plugins[0].Type: // DEL asks the first plugin last
		return err
	default:
		hint += fmt.Sprintf(" `fairlead del %s --continue` continues past it, so that the other plugins release "+
			"what they hold.",
			t.Typed(args))
	}
	return app.Fail(exit, strings.TrimSpace(hint), "%w", err)
}
