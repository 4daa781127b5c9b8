package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/fairlead-cni/fairlead/spec"
	"github.com/spf13/cobra"
)

// A collected is the answer of gc.
type collected struct {
	Network string     `json:"network"`
	Removed []attached `json:"removed"` // attachments that were remembered; what plugins found beside has no names
}

func (a *app) gcCommand() *cobra.Command {
	var valid []string
	var all, stdin bool
	c := &cobra.Command{
		Use: "gc NET [NETNS]", GroupID: "attach", Args: operands("NET [NETNS]"),
		Short: "Remove what belongs to none of the valid attachments of a network",
		Long: `Remove everything of the network NET that belongs to none of its valid attachments: what the cache remembers,
and whatever else the plugins find. The valid ones have to be said, or --all that there are none: containers of
other runtimes on this host may be attached to the same network.`,
		Example: `  fairlead gc lan --valid web1/eth0 --valid web2/eth0
  fairlead ls lan -o json | fairlead gc lan --from-stdin      keep all that is remembered`,
		RunE: func(c *cobra.Command, args []string) error {
			a.orphans = true
			keep, err := a.validAttachments(args[0], valid, all, stdin)
			if err != nil {
				return err
			}
			n, rt, err := a.networkAndRuntime(args[0])
			if err != nil {
				return err
			}
			before, _ := rt.List(n.Name)
			err = rt.GC(c.Context(), n.List, keep)
			after, _ := rt.List(n.Name)
			removed := collected{n.Name, []attached{}}
			for _, b := range before {
				gone := true
				for _, a := range after {
					gone = gone && a.Owner() != b.Owner()
				}
				if gone {
					removed.Removed = append(removed.Removed, attached{b.Network, b.ContainerID, b.IfName, b.Netns})
				}
			}
			if a.json() {
				return errors.Join(err, printJSON(a.stdout, removed))
			}
			for _, r := range removed.Removed {
				fmt.Fprintf(a.stdout, "removed %s/%s\n", r.ContainerID, r.IfName)
			}
			return err
		},
		ValidArgsFunction: a.completeTarget,
	}
	c.Flags().StringArrayVar(&valid, "valid", nil, "a valid attachment: CONTAINERID/IFNAME (repeatable)")
	c.Flags().BoolVar(&stdin, "from-stdin", false, "read the valid attachments as JSON: what `fairlead ls -o json` prints, or its list alone")
	c.Flags().BoolVar(&all, "all", false, "no attachment is valid: remove all of the network")
	return c
}

// validAttachments are those that the command line names: never none by accident.
func (a *app) validAttachments(network string, names []string, all, stdin bool) ([]spec.Attachment, error) {
	ways := 0
	for _, given := range []bool{len(names) > 0, stdin, all} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return nil, fail(exitUsage, "`fairlead ls "+network+"` lists what is attached. --all removes every one of them.",
			"gc: say which attachments are valid, in one way: --valid CONTAINERID/IFNAME, --from-stdin or --all")
	}
	valid := []spec.Attachment{}
	for _, name := range names {
		id, ifName, ok := strings.Cut(name, "/")
		if !ok || spec.ValidContainerID(id) != nil || spec.ValidIfName(ifName) != nil {
			return nil, usage("--valid %s: want CONTAINERID/IFNAME", name)
		}
		valid = append(valid, spec.Attachment{ContainerID: id, IfName: ifName})
	}
	if !stdin {
		return valid, nil
	}
	b, err := io.ReadAll(a.stdin)
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
			return nil, usage(`--from-stdin: want [{"containerID": "…", "ifname": "…"}]: %w`, err)
		}
	}
	for i, d := range doc.Attachments {
		if err := errors.Join(spec.ValidContainerID(d.ContainerID), spec.ValidIfName(d.IfName)); err != nil {
			return nil, usage("--from-stdin: attachment %d: %w", i, err)
		}
		if d.Network == "" || d.Network == network {
			valid = append(valid, d.Attachment)
		}
	}
	return valid, nil
}
