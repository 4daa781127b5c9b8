package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// A plugin is another process: what it knows of its error is a code and a text. So advice that a code alone cannot give
// goes by what the text names: who has what was asked for, and where a value comes from.

// advice is what to do about a plugin's error, or nothing where its code says enough.
func advice(doc *spec.Error, attached []attach.Cached) string {
	from, who := source(doc.Msg), owner(doc.Msg, attached)
	switch {
	case from != "" && who != "":
		return from + " " + who
	case from != "":
		return from + " " + hintEnvironment
	case who != "":
		return who
	case strings.Contains(doc.Msg, "give each list a range of its own"):
		return "`fairlead net ls` names the lists: give each a range of its own (rangeStart and rangeEnd of its ipam). Until then an add fails wherever it comes upon an address of the other's."
	case strings.Contains(doc.Msg, " has invalid gateway)") || strings.Contains(doc.Msg, " in its subnet; a scope of 253 "):
		return "Give the route a router in a subnet of the container's (gateway, or gw of the route); of one that is on the link without a subnet the route has \"scope\": 253. `fairlead net ls` says in which file it is."
	case strings.Contains(doc.Msg, "an interface of that name exists already"):
		return "Choose another name with -i NAME, or delete the interface that has it in the container."
	case strings.Contains(doc.Msg, ": start the daemon that keeps leases"), strings.Contains(doc.Msg, "; start the daemon that keeps leases"):
		return "It does not start by itself: systemctl enable --now cni-dhcp.socket, or `fairlead dhcp daemon`."
	case strings.Contains(doc.Msg, "mtu: ") && strings.Contains(doc.Msg, "the kernel does not take this for "):
		return "A link that stands on another one (macvlan, macvtap, ipvlan, vlan) has at most the MTU of that one. `fairlead net ls` says in which file it is."
	case strings.Contains(doc.Msg, " on the link has it") || strings.Contains(doc.Msg, " on the link is about to have it") || strings.Contains(doc.Msg, " itself, ") && strings.Contains(doc.Msg, ", has it"):
		return "Something on that segment uses the address: find it by its MAC, or use another. `fairlead ipam reserve NET ADDRESS` keeps host-local from giving it out."
	case strings.Contains(doc.Msg, ": is down; "):
		return "That is the host's to mend: no file is wrong."
	case strings.Contains(doc.Msg, "requested address "):
		return "It was asked for by IP of CNI_ARGS, by ips of CAP_ARGS, or by the network's args; without them the next free one is given."
	}
	return ""
}

// older says which plugin is too old for what it was told, and how a newer one comes in its place, if another program's is.
func older(ran *invoke.ExecError, doc *spec.Error) string {
	path := speaker(ran, doc)
	if ours(path) {
		return ""
	}
	const newer = "To have newer ones found first, set CNI_PATH to their directory, or install fairlead's in " + adminDir
	switch {
	case doc.Code == spec.CodeVersion:
		return path + " does not speak that version. " + newer + "; or change cniVersion in the network's configuration. `fairlead version NET` says what each plugin speaks."
	case (ran.Command == "STATUS" || ran.Command == "GC") && (doc.Code == spec.CodeUnknown || doc.Code == spec.CodeEnvironment): // about a container, and those name none
		return path + " is older than " + ran.Command + ". " + newer + "; a network whose cniVersion is before 1.1.0 goes without."
	}
	return ""
}

// speaker is the plugin that said it first: a delegate's words are passed on, with its file.
func speaker(ran *invoke.ExecError, doc *spec.Error) string {
	_, who, ok := strings.Cut(doc.Msg, " (plugin ")
	who, _, closed := strings.Cut(who, ")")
	if i := strings.LastIndex(who, "; "); ok && closed && i >= 0 {
		return who[i+2:]
	}
	return ran.Path
}

// source says where a value comes from that no file has.
func source(msg string) string {
	switch {
	case names(msg, "CNI_ARGS"), names(msg, "mac: ") && given(msg):
		return "No file says that: it comes from CNI_ARGS."
	case names(msg, "runtimeConfig.portMappings"), strings.Contains(msg, "publish another port"):
		return "No file says that: it comes from -p of `fairlead run`, or from CAP_ARGS."
	case names(msg, "runtimeConfig."):
		return "No file says that: it comes from CAP_ARGS."
	}
	return ""
}

// given reports whether the MAC address that an error is about is one of CNI_ARGS.
func given(msg string) bool {
	_, mac, _ := strings.Cut(msg, `mac: "`)
	mac, _, ok := strings.Cut(mac, `"`)
	return ok && mac != "" && strings.Contains(strings.ToLower(os.Getenv("CNI_ARGS")), strings.ToLower(mac))
}

// owner says how whoever has what was asked for gives it back, if the error names somebody.
func owner(msg string, attached []attach.Cached) string {
	for _, c := range attached {
		o := c.Owner()
		for _, text := range []string{o.String() + " has it", o.String() + " had it", "by " + o.String() + " ", "by container " + o.ContainerID + " ", "in use by " + o.ContainerID + " " + o.IfName + " "} {
			if strings.Contains(msg+" ", text) {
				return letGo(c)
			}
		}
	}
	if who, _, ok := strings.Cut(msg, " has it"); ok {
		if o := strings.Split(who[strings.LastIndexByte(who, ' ')+1:], "/"); len(o) == 3 {
			return fmt.Sprintf("`fairlead ls` knows nothing of that one. If its container is gone, `fairlead del %s gone --container-id %s -i %s` gives back what it holds.", o[0], o[1], o[2])
		}
	}
	if strings.Contains(msg, " is in use by ") {
		return "`fairlead ls` knows nothing of that container. If it is gone, `fairlead ipam release NET ADDRESS --force` ends its lease; `fairlead ipam show ADDRESS` says what is known."
	}
	return ""
}

const hintEnvironment = "`fairlead help environment` says what is understood."

// names reports whether an error is about a value that begins so: its path stands at the beginning of what is said.
func names(msg, path string) bool {
	return strings.HasPrefix(msg, path) || strings.Contains(msg, ": "+path) || strings.Contains(msg, "; "+path)
}

// deletes is the command that deletes an attachment.
func deletes(o spec.Owner, netns string) string {
	del := fmt.Sprintf("`fairlead del %s %s", o.Network, cmp.Or(netns, "NETNS"))
	if o.ContainerID != containerID(netns) {
		del += " --container-id " + o.ContainerID
	}
	if o.IfName != "eth0" {
		del += " -i " + o.IfName
	}
	return del + "`"
}

// letGo says how an attachment gives back what it has.
func letGo(c attach.Cached) string {
	if isGone(c) {
		return fmt.Sprintf("The network namespace of %s is gone: `fairlead gc %s --gone` removes what it left.", c.Owner(), c.Network)
	}
	del := deletes(c.Owner(), c.Netns)
	switch {
	case strings.HasPrefix(c.ContainerID, "cnitool-"):
		return del + " detaches who has it."
	case strings.HasPrefix(c.ContainerID, "run-"):
		return fmt.Sprintf("%s is a `fairlead run`: it is free when that ends.", c.ContainerID)
	}
	return fmt.Sprintf("It is free when %s is removed by the runtime that made it; where none does that any more, %s detaches it.", c.ContainerID, del)
}

// fullRange says how a network whose addresses are all in use comes to serve again; nothing where its leases cannot be read.
func fullRange(network string) string {
	l, err := spec.Load(confDir(), network)
	if errors.Is(err, spec.ErrNotFound) && network == defaultNetwork {
		l, err = spec.ParseList(defaultList(ipv6Here()))
	}
	if err != nil {
		return ""
	}
	p, err := poolOf(l, true)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // others may hold the lock
	defer cancel()
	b, err := p.ledger.Look(ctx, network)
	if err != nil {
		return ""
	}
	count := map[string]int{}
	for _, l := range b.Leases {
		count[l.State]++
	}
	switch {
	case count[ipam.Gone] > 0:
		return fmt.Sprintf("%d of %d leases are of containers that are gone: `fairlead ipam reclaim %s` removes them.", count[ipam.Gone], len(b.Leases), network)
	case count[ipam.Unknown] > 0:
		return fmt.Sprintf("The containers of %d leases are alive, and the state of %d is unknown: `fairlead ipam ls %[3]s` lists them, and `fairlead ipam release %[3]s ADDRESS --force` removes the lease of one that is gone.", count[ipam.Alive], count[ipam.Unknown], network)
	}
	return fmt.Sprintf("All %d containers that have one are alive (`fairlead ipam ls %s`): detach one and try again, or configure a larger range.", count[ipam.Alive], network)
}
