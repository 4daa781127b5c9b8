package advice

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/attached"
	"github.com/fairlead-cni/fairlead/cli/target"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/repair"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// SameAddresses is args.cni of a list, with the addresses that an attachment has, where host-local gives them.
func SameAddresses(l *spec.List, c attach.Cached) map[string]any {
	cni, asks := map[string]any{}, false
	for _, p := range l.WrittenOut().Plugins {
		asks = asks || p.IPAMType == "host-local"
		var conf struct{ Args struct{ CNI map[string]any } }
		if b, err := p.Object.MarshalJSON(); err == nil && json.Unmarshal(b, &conf) == nil {
			maps.Copy(cni, conf.Args.CNI)
		}
	}
	if !asks || c.Result == nil {
		return nil
	}
	var ips []string
	for _, ip := range c.Result.IPs {
		if attached.OwnAddress(c, ip) {
			ips = append(ips, ip.Address.Addr().String())
		}
	}
	cni["ips"] = ips
	return cni
}

// Remakes is the mend of what no command of ours can mend while the container lives.
const Remakes = "recreate the container by the runtime that attached it"

// Mending says how to mend an attachment that differs.
func Mending(t *target.Target, args []string) string {
	was := t.Former()
	if was != nil && len(was.Left) > 0 {
		return fmt.Sprintf("`fairlead del %s` finishes the del that was begun.", t.Typed(args))
	}
	c := attach.Cached{Network: t.Name, Netns: t.Netns, ContainerID: t.ContainerID, IfName: t.IfName}
	if was != nil {
		c = *was
	}
	again := remake(c, args[0], args[1])
	if was != nil {
		switch whose(t, was) {
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
			target.Place(args[0], args[1], t.IfName), t.ContainerID)
	}
	return "The network is configured otherwise now than when this was attached to it; `fairlead repair` goes by what " +
		"was then. To take the change over: " + again
}

// whose says who attached what the target was, where it is not for repair.
func whose(t *target.Target, was *attach.Cached) repair.State {
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
func remake(c attach.Cached, network, netns string) string {
	switch {
	case strings.HasPrefix(c.ContainerID, "cnitool-"):
		del, add := again(c, network, netns)
		return fmt.Sprintf("`%s` and `%s` make it anew.", del, add)
	case mine(c.ContainerID):
		return "end that `fairlead run`, and run it again."
	}
	return "have the runtime that attached the container recreate it (podman network reload, say)."
}

// RemakeCommand attaches a container anew.
func RemakeCommand(c attach.Cached) string {
	switch {
	case strings.HasPrefix(c.ContainerID, "cnitool-"):
		del, add := again(c, c.Network, attached.ShortNetns(c.Netns))
		return del + " && " + add
	case mine(c.ContainerID):
		return "end that `fairlead run`, and run it again"
	}
	return Remakes
}

// again are the commands that attach what c remembers anew, with its published ports, its arguments and, where
// host-local gave them, its addresses: a plain add would lose them.
func again(c attach.Cached, network, netns string) (del, add string) {
	where, env := target.Place(network, netns, c.IfName), ""
	if path, err := attached.NetnsPath(netns); err == nil && attached.ContainerID(path) != c.ContainerID {
		where += " --container-id " + c.ContainerID
	}
	if len(c.Capabilities) > 0 {
		if doc, err := json.Marshal(c.Capabilities); err == nil {
			env += "CAP_ARGS=" + inQuotes(string(doc)) + " "
		}
	}
	if args := argsAgain(c); args != "" {
		env += "CNI_ARGS=" + inQuotes(args) + " "
	}
	return "fairlead del " + where, env + "fairlead add " + where
}

// argsAgain are the CNI_ARGS of c, which ask for its addresses where nothing of c did and host-local gives them.
func argsAgain(c attach.Cached) string {
	var words []string
	given := map[string]bool{}
	for _, kv := range c.Args {
		words = append(words, kv[0]+"="+kv[1])
		given[kv[0]] = true
	}
	l := c.AttachedBy(nil)
	if l == nil || c.Result == nil || given["IP"] || c.Capabilities["ips"] != nil {
		return strings.Join(words, ";")
	}
	if ips := SameAddresses(l, c)["ips"]; ips != nil && len(ips.([]string)) > 0 {
		if !given["IgnoreUnknown"] { // plugins that know no IP refuse it else
			words = append(words, "IgnoreUnknown=1")
		}
		words = append(words, "IP="+strings.Join(ips.([]string), ","))
	}
	return strings.Join(words, ";")
}

// inQuotes is a word of a shell.
func inQuotes(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// RouteCommand adds what is missing of the routes that ADD answered with, as far as Fairlead can tell how; else the
// container is attached anew.
func RouteCommand(c attach.Cached, dst netip.Prefix) string {
	if !dst.IsValid() || c.Result == nil || c.Netns == "" {
		return RemakeCommand(c)
	}
	for _, r := range c.Result.Routes {
		if r.Dst.Masked() != dst.Masked() {
			continue
		}
		gw := r.GW
		for _, ip := range c.Result.IPs {
			if !gw.IsValid() && attached.OwnAddress(c, ip) && ip.Address.Addr().Is4() == dst.Addr().Is4() {
				gw = ip.Gateway
			}
		}
		if gw.IsValid() && r.Table == nil && r.MTU == 0 && r.AdvMSS == 0 && r.Priority == 0 && r.Scope == nil {
			return fmt.Sprintf("nsenter --net=%s ip route add %v via %v dev %s", c.Netns, dst.Masked(), gw, c.IfName)
		}
	}
	return RemakeCommand(c)
}

// BeyondRepair says what to do about what repair has found and cannot mend, once each.
func BeyondRepair(findings []repair.Finding) (notes []string) {
	list, _ := (&attach.Runtime{}).List("")
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
				return w.Mends && slices.ContainsFunc(w.What,
					func(what string) bool { return line == w.Resource+": "+what })
			})
		})
		switch {
		case len(hopeless) == 0:
		case mine(f.Owner.ContainerID):
			o := f.Owner
			c := attach.Cached{Network: o.Network, Netns: f.Netns, ContainerID: o.ContainerID, IfName: o.IfName}
			if i := slices.IndexFunc(list, func(c attach.Cached) bool { return c.Owner() == o }); i >= 0 {
				c = list[i]
			}
			say(o.String() + ": what cannot be mended: " + remake(c, o.Network, attached.ShortNetns(f.Netns)))
		default:
			say("what cannot be mended is made anew with the container, by the runtime that attached it")
		}
	}
	return notes
}

// RouteSaid is the destination of the route that a resource says, as one of what ADD answered c with.
func RouteSaid(resource string, c attach.Cached) (dst netip.Prefix) {
	if c.Result == nil {
		return dst
	}
	words := strings.Fields(resource)
	for _, r := range c.Result.Routes {
		via := r.GW
		for _, ip := range c.Result.IPs {
			if !via.IsValid() && ip.Address.Addr().Is4() == r.Dst.Addr().Is4() {
				via = ip.Gateway
			}
		}
		named := slices.Contains(words, r.Dst.Masked().String())
		if named || r.Dst.Bits() == 0 && slices.Contains(words, "default") && slices.Contains(words, via.String()) {
			return r.Dst
		}
	}
	return dst
}
