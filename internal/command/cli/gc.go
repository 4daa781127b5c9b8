package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/ipam"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/snapshot"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/spelling"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// collected is the answer of gc.
type collected struct {
	Network string `json:"network,omitempty"` // empty: all networks
	// attachments of the cache; what plugins removed besides is not listed
	Removed   []attached.Key `json:"removed"`
	Reclaimed []ipam.Address `json:"reclaimed,omitempty"` // --gone: leases without an attachment in the cache
	names     []string       // of Removed, for people
}

// gcFlags are the flags that say which attachments are valid.
type gcFlags struct {
	valid                   []string
	all, stdin, gone, force bool
}

func gcCommand(a *app.App) *cobra.Command {
	var f gcFlags
	c := &cobra.Command{
		Args: func(c *cobra.Command, args []string) error {
			if f.gone && len(args) == 0 {
				return nil
			}
			if len(args) == 0 {
				return app.Misused(c, errors.New("NET is missing; only `fairlead gc --gone` works without NET, on "+
					"all networks"))
			}
			return app.Operands("NET [NETNS]")(c, args)
		},
		Use: "gc [NET [NETNS]]", GroupID: "attach",
		Short: "Remove attachments of a network that are not valid, with everything they left",
		Long: `Remove everything of the network NET that belongs to none of its valid attachments: what the cache remembers,
and what else the plugins find. NET is the name of a network, or the path of a file that defines one. Name the valid attachments with --valid, or say with --all that there are none. Other
runtimes on this host may have containers on the same network. If an attachment may be alive and is not named, or if
--valid names one that does not exist, the command lists it and removes nothing. --force removes it.

--gone removes only what is proven gone: attachments in the cache whose network namespace no longer exists, with
everything they left, and the leases of such containers. Without NET it does so in all networks. The unit
fairlead-gc.service runs it once a boot, before the runtimes start.

NETNS is accepted for compatibility with cnitool and has no effect.

Exit status: 0 done, 1 something could not be removed or read, 2 refused without --force, 4 no such network.`,
		Example: `  fairlead gc --gone                                          remove what dead containers left, in all networks
  fairlead gc lan --gone                                      the same in one network
  fairlead gc lan --valid web1/eth0 --valid web2/eth0
  fairlead gc lan --all --force                               remove all attachments, even of live containers
  fairlead ls lan -o json | fairlead gc lan --from-stdin      keep all attachments of the cache`,
		RunE: func(c *cobra.Command, args []string) error {
			a.Orphans = true
			if err := attached.NoteAbsent(a, args); err != nil {
				return err
			}
			if len(args) == 0 {
				return collectGone(a.Interruptible(), a, nil)
			}
			n, err := netconf.FindOrFile(a, args[0])
			if err != nil {
				return err
			}
			return gc(a, n, f)
		},
		ValidArgsFunction: target.CompleteTarget,
	}
	c.Flags().StringArrayVar(&f.valid, "valid", nil, "a valid attachment: `CONTAINERID/IFNAME` (repeatable)")
	c.Flags().BoolVar(&f.stdin, "from-stdin", false,
		"read the valid attachments as JSON: the output of 'fairlead ls -o json', or only its list")
	c.Flags().BoolVar(&f.gone, "gone", false, "remove only what is proven gone; without NET in all networks")
	c.Flags().BoolVar(&f.all, "all", false,
		"no attachment is valid: remove all; needs --force if one may be alive")
	c.Flags().BoolVar(&f.force, "force", false,
		"also remove what may be alive, and accept a --valid that is not attached")
	return c
}

func gc(a *app.App, n *netconf.Network, f gcFlags) error {
	keep, err := validAttachments(a, n.Name, f)
	if err != nil {
		return err
	}
	if f.gone {
		return collectGone(a.Interruptible(), a, n)
	}
	rt, err := netconf.Runtime(a, n)
	if err != nil {
		return err
	}
	s, err := snapshot.Read(n.Name)
	if err != nil {
		return err
	}
	defer s.Close()
	s.Problems(a, n.Name) // GC names them
	if !f.force {
		if err := doubtful(s, keep, f); err != nil {
			return err
		}
	}
	if err = rt.GC(a.Interruptible(), n.List, keep); !n.DisableGC {
		err = errors.Join(err, sweep(a.Interruptible(), a, n, keep))
	}
	after, _ := rt.List(n.Name)
	var otherwise []attach.Cached
	removed := collected{Network: n.Name, Removed: []attached.Key{}}
	for _, b := range s.All {
		if attached.ByOwner(after, b.Owner()) == nil {
			removed.Removed = append(removed.Removed, attached.KeyOf(b.Owner(), b.Netns))
			removed.names = append(removed.names, attached.ShortOwner(b))
			otherwise = append(otherwise, b)
		}
	}
	if !n.Remembered {
		target.NoteChanged(a, n.List, otherwise)
	}
	return errors.Join(err, removed.print(a))
}

// doubtful refuses a list of valid attachments that looks like a mistake: it names one that is not attached, or it
// leaves out one that may be alive. Another program's list, read from stdin, may name attachments that this cache
// does not know.
func doubtful(s *snapshot.Snapshot, keep []spec.Attachment, f gcFlags) error {
	known := make([]string, 0, len(s.All))
	var living []string
	for _, c := range s.All {
		name := c.ContainerID + "/" + c.IfName
		known = append(known, name)
		kept := slices.Contains(keep, spec.Attachment{ContainerID: c.ContainerID, IfName: c.IfName})
		if state := s.State(c); state != attached.Gone && !kept {
			living = append(living, fmt.Sprintf("%s of %s (%s)", name, cmp.Or(c.Netns, "its namespace is not "+
				"recorded"),
				state))
		}
	}
	for _, k := range keep {
		name := k.ContainerID + "/" + k.IfName
		if f.stdin || slices.Contains(known, name) {
			continue
		}
		hint := "`fairlead ls` lists the attachments. --force removes the others all the same."
		if near, ok := spelling.Nearest(name, known); ok {
			hint = "Did you mean " + near + "? " + hint
		}
		return app.Fail(app.ExitUsage, hint, "--valid %s: not attached, so nothing is removed", name)
	}
	if len(living) > 0 && f.all {
		return app.Fail(app.ExitUsage, "--force removes it all the same; --gone removes only what is gone.",
			"may be alive, so nothing is removed: %s", app.Names(living))
	}
	if len(living) > 0 {
		return app.Fail(app.ExitUsage,
			"Name it with --valid, or remove it with --force. --gone removes only what is gone.",
			"not named as valid, and may be alive, so nothing is removed: %s", app.Names(living))
	}
	return nil
}

// sweep removes what the plugins of this project would remove in a GC, for a list whose version has no GC.
func sweep(ctx context.Context, a *app.App, n *netconf.Network, keep []spec.Attachment) error {
	version, err := spec.Select(n.List)
	if err != nil || version.AtLeast(spec.V110) {
		return err
	}
	dirs, itself := netconf.Search(n)
	mine := slices.ContainsFunc(n.Plugins, func(p *spec.Conf) bool {
		path, err := invoke.Find(p.Type, dirs)
		return err != nil && itself || err == nil && netconf.OurProgram(path)
	})
	did := ""
	if mine {
		did = "; what fairlead's own plugins made for attachments that are not valid is removed, except addresses"
	}
	a.Note("the plugins of %s were not asked what else is left: GC came with CNI 1.1.0, and its cniVersion is %s%s",
		n.Name, version, did)
	if !mine {
		return nil
	}
	return sdk.Sweep(ctx, plugin.All(), n.Name, keep)
}

// validAttachments returns the attachments that the flags name. It fails if no flag names any, so that none is
// removed by accident.
func validAttachments(a *app.App, network string, f gcFlags) ([]spec.Attachment, error) {
	ways := 0
	for _, given := range []bool{len(f.valid) > 0, f.stdin, f.all, f.gone} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return nil, app.Fail(app.ExitUsage,
			"`fairlead ls "+network+"` lists the attachments. --gone removes those whose namespace is gone, --all "+
				"removes all.",
			"gc: name the valid attachments in one way: --valid CONTAINERID/IFNAME, --from-stdin, --gone or --all")
	}
	valid := []spec.Attachment{}
	for _, name := range f.valid {
		id, ifName, ok := strings.Cut(name, "/")
		if !ok || spec.ValidContainerID(id) != nil || spec.ValidIfName(ifName) != nil {
			return nil, app.Usage("--valid %s: want CONTAINERID/IFNAME", name)
		}
		valid = append(valid, spec.Attachment{ContainerID: id, IfName: ifName})
	}
	if !f.stdin {
		return valid, nil
	}
	b, err := io.ReadAll(a.Stdin)
	if err != nil {
		return nil, err
	}
	type named struct {
		spec.Attachment
		Network string `json:"network"`
	}
	var doc struct {
		Attachments []named `json:"attachments"`
	}
	if err := json.Unmarshal(b, &doc.Attachments); err != nil {
		doc.Attachments = nil
		if err = json.Unmarshal(b, &doc); err == nil && doc.Attachments == nil {
			err = errors.New(`"attachments" is missing`)
		}
		if err != nil {
			return nil, app.Usage(`--from-stdin: want [{"containerID": "…", "ifname": "…"}]: %w`, err)
		}
	}
	for i, d := range doc.Attachments {
		if err := errors.Join(spec.ValidContainerID(d.ContainerID), spec.ValidIfName(d.IfName)); err != nil {
			return nil, app.Usage("--from-stdin: attachment %d: %w", i, err)
		}
		if d.Network == "" || d.Network == network {
			valid = append(valid, d.Attachment)
		}
	}
	return valid, nil
}
