package advice

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/target"
	"github.com/fairlead-cni/fairlead/internal/command/trace"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/spec"
)

// SameAddresses returns args.cni that asks for the present addresses of an attachment, if host-local allocates them.
func SameAddresses(l *spec.List, c attach.Cached) map[string]any {
	if !netconf.AllocatesBy(l, "host-local") || c.Result == nil {
		return nil
	}
	cni := map[string]any{}
	for _, p := range l.WrittenOut().Plugins {
		var conf struct{ Args struct{ CNI map[string]any } }
		if b, err := p.Object.MarshalJSON(); err == nil && json.Unmarshal(b, &conf) == nil {
			maps.Copy(cni, conf.Args.CNI)
		}
	}
	var ips []string
	for _, p := range attached.OwnAddresses(c) {
		ips = append(ips, p.Addr().String())
	}
	cni["ips"] = ips
	return cni
}

// Remakes is the correction where no command of Fairlead can correct a live container.
const Remakes = "recreate the container with the runtime that attached it"

// Fixing returns a hint: how to correct an attachment that differs from its plan.
func Fixing(t *target.Target, args []string) string {
	was := t.Entry()
	if was != nil && len(was.Left) > 0 {
		return fmt.Sprintf("`fairlead del %s` finishes the del that was begun.", t.Typed(args))
	}
	c := attach.Cached{Network: t.Name, Netns: t.Netns, ContainerID: t.ContainerID, IfName: t.IfName}
	if was != nil {
		c = *was
	}
	again := remake(c, args[0], args[1])
	if was != nil {
		switch ownership(t, was) {
		case repair.Foreign:
			return "Another program attached it, so `fairlead repair` does not change it. `fairlead repair " +
				"--adopt` attaches it and all others of that program again, with Fairlead's plugins and the same " +
				"addresses. Or: " + again
		case repair.Handed:
			return "It was handed over to the reference plugins, so `fairlead repair` does not change it. To " +
				"attach it with Fairlead again: " + again
		}
	}
	switch {
	case was == nil || !repair.Changed(t.List, was):
		return "`fairlead repair` restores what this host lacks, without restarting the container. For what it " +
			"cannot restore: " + again
	case !byCommand(t.ContainerID): // the runtime's DEL uses the present file, and leaves what only the old one made
		again = fmt.Sprintf("`fairlead del %s --container-id %s` removes what the old configuration made. Then "+
			"recreate the container with its runtime.",
			target.Place(args[0], args[1], t.IfName), t.ContainerID)
	}
	return "The network's configuration has changed since this was attached; `fairlead repair` uses the old one. " +
		"To apply the change: " + again
}

// ownership returns Foreign or Handed if repair leaves the attachment to another program, else "".
func ownership(t *target.Target, was *attach.Cached) repair.State {
	plugins := t.WrittenOut().Plugins
	if len(plugins) == 0 {
		return ""
	}
	own := netconf.OfType(plugins[0].Type)
	if own == nil {
		return ""
	}
	state, err := repair.Ownership(was, *own)
	if err != nil {
		return "" // a hint needs no error
	}
	return state
}

// byCommand reports whether this command or cnitool made an attachment. Detaching the container of another runtime
// would contradict that runtime's records.
func byCommand(containerID string) bool {
	return strings.HasPrefix(containerID, "cnitool-") || strings.HasPrefix(containerID, "run-")
}

// remake says how to attach c again.
func remake(c attach.Cached, network, netns string) string {
	switch {
	case strings.HasPrefix(c.ContainerID, "cnitool-"):
		del, add := again(c, network, netns)
		return fmt.Sprintf("`%s` and `%s` attach it again.", del, add)
	case byCommand(c.ContainerID):
		return "end that `fairlead run`, and start it again."
	}
	return "recreate the container with the runtime that attached it (for example podman network reload)."
}

// Remake says how to attach a container again.
func Remake(c attach.Cached) trace.Advice {
	switch {
	case strings.HasPrefix(c.ContainerID, "cnitool-"):
		del, add := again(c, c.Network, attached.ShortNetns(c.Netns))
		return trace.Advice{Fix: del + " && " + add}
	case byCommand(c.ContainerID):
		return trace.Advice{Look: "end that `fairlead run`, and start it again"}
	}
	return trace.Advice{Fix: Remakes}
}

// OtherAddress says how a container gets another address than one that another host has, which stays reserved.
func OtherAddress(c attach.Cached, taken netip.Addr) trace.Advice {
	_, asked := c.Capabilities["ips"]
	asks := slices.ContainsFunc(c.Args, func(kv [2]string) bool { return kv[0] == "IP" })
	if asks || asked {
		text := fmt.Sprintf("the container asks for %v itself: attach it with another address", taken)
		return trace.Advice{Look: text}
	}
	if !strings.HasPrefix(c.ContainerID, "cnitool-") {
		return Remake(c)
	}
	c.Result = nil // it does not ask for its present addresses
	del, add := again(c, c.Network, attached.ShortNetns(c.Netns))
	return trace.Advice{Fix: fmt.Sprintf("%s && fairlead ipam reserve %s %v && %s", del, c.Network, taken, add)}
}

// again returns the commands that detach and attach c with the same published ports, arguments and, if host-local
// allocates them, addresses. A plain add would lose these.
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

// argsAgain returns the CNI_ARGS of c. They ask for its present addresses, if nothing else does and host-local
// allocates them.
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
		if !given["IgnoreUnknown"] { // plugins without the key IP refuse it otherwise
			words = append(words, "IgnoreUnknown=1")
		}
		words = append(words, "IP="+strings.Join(ips.([]string), ","))
	}
	return strings.Join(words, ";")
}

// inQuotes quotes text for a shell.
func inQuotes(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// Route returns the command that restores a route of the result of ADD, in the place of another one if there is one. If
// it cannot tell the route's parts, it says how to attach the container again.
func Route(c attach.Cached, dst netip.Prefix) trace.Advice {
	if !dst.IsValid() || c.Result == nil || c.Netns == "" {
		return Remake(c)
	}
	for _, r := range c.Result.Routes {
		if r.Dst.Masked() != dst.Masked() {
			continue
		}
		gw := attached.GatewayOf(c, r)
		plain := r.Table == nil && r.MTU == 0 && r.AdvMSS == 0 && r.Priority == 0 && r.Scope == nil
		if gw.IsValid() && plain {
			replace := fmt.Sprintf("ip route replace %v via %v dev %s", dst.Masked(), gw, c.IfName)
			return trace.Advice{Fix: replace}.In(c.Netns)
		}
	}
	return Remake(c)
}

// NotRepaired returns hints for what repair found and cannot restore, each once.
func NotRepaired(findings []repair.Finding) (notes []string) {
	list, _ := attached.List("")
	say := func(note string) {
		if !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	for _, f := range findings {
		if f.State != repair.Broken {
			continue
		}
		byHand := func(d spec.Difference) bool { return d.Repair == spec.ByHand }
		stays := func(d spec.Difference) bool { return d.Repair != spec.ByRepair && !byHand(d) }
		if slices.ContainsFunc(f.Differences, byHand) {
			say("`fairlead doctor` has the commands for what stands in the way of repair")
		}
		switch {
		case !slices.ContainsFunc(f.Differences, stays):
		case byCommand(f.Owner.ContainerID):
			o := f.Owner
			c := attach.Cached{Network: o.Network, Netns: f.Netns, ContainerID: o.ContainerID, IfName: o.IfName}
			if cached := attached.ByOwner(list, o); cached != nil {
				c = *cached
			}
			say(attached.ShortOwner(c) + ": for what repair cannot restore: " +
				remake(c, o.Network, attached.ShortNetns(f.Netns)))
		default:
			say("what repair cannot restore needs a new container, from the runtime that attached this one")
		}
	}
	return notes
}

// RouteTo returns the destination of a route, if the result of ADD has a route with it.
func RouteTo(destination string, c attach.Cached) (dst netip.Prefix) {
	if c.Result == nil {
		return dst
	}
	for _, r := range c.Result.Routes {
		if r.Dst.Masked().String() == destination {
			return r.Dst
		}
	}
	return dst
}
