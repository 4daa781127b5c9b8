package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/repair"
	"github.com/fairlead-cni/fairlead/sdk"
)

// mending says how to mend an attachment that differs.
func (t *target) mending(args []string) string {
	was := t.former()
	if was != nil && len(was.Left) > 0 {
		return fmt.Sprintf("`fairlead del %s` finishes the del that was begun.", t.typed(args))
	}
	again := remake(args[0], args[1], t.IfName, t.ContainerID)
	if was != nil {
		switch t.whose(was) {
		case repair.Foreign:
			return "Another program attached it, and `fairlead repair` leaves it alone: `fairlead repair --adopt` attaches " +
				"it, and all such, anew by fairlead's plugins, with the same addresses. Or: " + again
		case repair.Handed:
			return "It was handed over to the reference plugins, whose rules these are now, and `fairlead repair` leaves it " +
				"alone. To have fairlead's again: " + again
		}
	}
	switch {
	case was == nil || !repair.Changed(t.List, was):
		return "`fairlead repair` makes again what this host lacks, and the container goes on. What it cannot mend: " + again
	case !mine(t.ContainerID): // its runtime's DEL goes by the file, and would leave what only the old one made
		again = fmt.Sprintf("`fairlead del %s --container-id %s` removes what was made then; then have the runtime that "+
			"attached the container recreate it.",
			place(args[0], args[1], t.IfName), t.ContainerID)
	}
	return "The network is configured otherwise now than when this was attached to it; `fairlead repair` goes by what " +
		"was then. To take the change over: " + again
}

// whose says who attached what the target was, where it is not for repair.
func (t *target) whose(was *attach.Cached) repair.State {
	plugins := t.WrittenOut().Plugins
	first := func(p sdk.Plugin) bool { return len(plugins) > 0 && p.Name == plugins[0].Type }
	i := slices.IndexFunc(plugin.All(), first)
	if i < 0 {
		return ""
	}
	state, err := repair.Whose(was, plugin.All()[i])
	if err != nil {
		return "" // it is about a hint
	}
	return state
}

// mine reports whether an attachment was made by this command or by cnitool. Of another runtime's container, DEL and
// ADD would take what it knows of.
func mine(containerID string) bool {
	return strings.HasPrefix(containerID, "cnitool-") || strings.HasPrefix(containerID, "run-")
}

// remake says how an attachment is made anew.
func remake(network, netns, ifname, containerID string) string {
	switch {
	case strings.HasPrefix(containerID, "cnitool-"):
		return fmt.Sprintf("`fairlead del %[1]s` and `fairlead add %[1]s` make it anew.", place(network, netns, ifname))
	case mine(containerID):
		return "end that `fairlead run`, and run it again."
	}
	return "have the runtime that attached the container recreate it (podman network reload, say)."
}

// place is an attachment as the commands are told it.
func place(network, netns, ifname string) string {
	if ifname != "eth0" {
		return network + " " + netns + " -i " + ifname
	}
	return network + " " + netns
}

// beyondRepair says what to do about what repair has found and cannot mend, once each.
func beyondRepair(findings []repair.Finding) (notes []string) {
	say := func(note string) {
		if !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	for _, f := range findings {
		if f.State != repair.Broken {
			continue
		}
		hopeless := slices.DeleteFunc(slices.Clone(f.Drift), func(line string) bool {
			return slices.ContainsFunc(f.Wrong, func(w sdk.Wrong) bool {
				return w.Mends && slices.ContainsFunc(w.What, func(what string) bool { return line == w.Resource+": "+what })
			})
		})
		switch {
		case len(hopeless) == 0:
		case mine(f.Owner.ContainerID):
			netns := strings.TrimPrefix(strings.TrimPrefix(f.Netns, "/var"), "/run/netns/")
			o := f.Owner
			say(o.String() + ": what cannot be mended: " + remake(o.Network, netns, o.IfName, o.ContainerID))
		default:
			say("what cannot be mended is made anew with the container, by the runtime that attached it")
		}
	}
	return notes
}
