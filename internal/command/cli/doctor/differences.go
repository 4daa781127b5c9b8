package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/advice"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// ofRepair adds what a dry run of repair finds: it compares each attachment with its plan.
func (d *Doctor) ofRepair() {
	report := d.ofPlans()
	if report == nil {
		return
	}
	for _, p := range report.Problems {
		d.add(CacheUnreadable, "/var/lib/cni", p, nil)
	}
	foreigners := 0
	mine := map[spec.Owner]int{}
	for i, c := range d.Selected {
		mine[c.Owner()] = i
	}
	for _, f := range report.Findings {
		i, ok := mine[f.Owner]
		if !ok {
			continue
		}
		if f.State == repair.Foreign || f.State == repair.Handed || f.State == repair.Offline {
			foreigners++
			d.byResult(d.Selected[i])
		}
		d.attachment(f, d.Selected[i])
	}
	if foreigners > 0 {
		d.remark("%d of %d attachments are of other plugins: doctor compares them with the result of ADD, and "+
			"knows little of their rules", foreigners, len(d.Selected))
	}
}

// ofPlans returns how the attachments differ from their plans; nil if that cannot be known. It compares once in a run.
func (d *Doctor) ofPlans() *repair.Report {
	if !d.compared && !d.unknown {
		d.compared = true
		if d.plans = d.repairs(d.Selected, false); d.plans != nil {
			d.Found = d.plans.Findings
		}
	}
	return d.plans
}

// differs reports whether a resource of a kind differs from the plan of an attachment that was asked about.
func (d *Doctor) differs(kind string) bool {
	report := d.ofPlans()
	return report != nil && slices.ContainsFunc(report.Findings, func(f repair.Finding) bool {
		is := func(w spec.Difference) bool { return w.Kind == kind && w.Got != spec.Denied }
		return slices.ContainsFunc(f.Differences, is)
	})
}

// RulesMissing returns which of these attachments lack rules in the packet filter.
func (d *Doctor) RulesMissing(of []attach.Cached) map[spec.Owner]bool {
	missing := map[spec.Owner]bool{}
	report := d.repairs(of, true)
	if report == nil {
		return missing
	}
	for _, f := range report.Findings {
		bare := func(d spec.Difference) bool { return d.Resource != "" && d.Got != spec.Denied }
		missing[f.Owner] = f.State != repair.Gone && slices.ContainsFunc(f.Differences, bare)
	}
	return missing
}

// repairs is what a repair of these attachments would find, in all or in the packet filter alone; nil if that cannot be
// known.
func (d *Doctor) repairs(of []attach.Cached, filter bool) *repair.Report {
	if conn, err := nft.Open(d.Host); err != nil {
		d.Unexamined("the packet filter: %v", err)
	} else if _, err := conn.BaseChains(); err != nil {
		d.Unexamined("the host side of attachments, and the packet filter: %v", err)
		return nil
	}
	sdk.LogTo(io.Discard) // what ADD warns of is a finding here
	r := d.DryRepairer(of)
	r.Firewall = filter
	if slices.ContainsFunc(of, d.silent) { // each lease would wait for the daemon
		r.Plugins = slices.DeleteFunc(r.Plugins, func(p sdk.Plugin) bool { return p.Name == "dhcp" })
	}
	report, err := r.Run(d.Ctx)
	if err != nil {
		d.Unexamined("the plans of attachments: %v", err)
		return nil
	}
	return report
}

// attachment adds the findings of one attachment.
func (d *Doctor) attachment(f repair.Finding, c attach.Cached) {
	switch {
	case f.Held: // the container lives, and another one has its address
		d.add(AttachmentBroken, "network "+c.Network, f.Differences.Error(), affects(c), how(advice.Remake(c))...)
		return
	case f.State == repair.Gone:
		d.add(ContainerGone, "network "+c.Network, "", affects(c, f.Differences.Lines()...))
		return
	case f.State == repair.Offline:
		var rules []string
		for _, d := range f.Differences {
			if d.Resource != "" { // byResult reports links
				rules = append(rules, d.Error())
			}
		}
		if len(rules) > 0 {
			d.add(ReferenceRulesMissing, "packet filter", "", affects(c, rules...))
		}
		return
	case slices.Contains([]repair.State{repair.InOrder, repair.Foreign, repair.Handed, repair.Busy}, f.State):
		return
	}
	if len(f.Left) > 0 {
		d.add(DELUnfinished, "network "+c.Network, "", affects(c, strings.Join(f.Left, ", ")+" failed"),
			"fix", strings.Trim(advice.Deletes(c.Owner(), c.Netns), "`"))
		return
	}
	links := slices.ContainsFunc(f.Differences, func(w spec.Difference) bool { return w.Resource != "" && !w.Follows })
	for _, w := range f.Differences {
		switch {
		case w.Got == spec.Denied:
			d.Unexamined("%s of %s: %s", cmp.Or(w.Resource, "the attachment"), attached.ShortOwner(c), w.Text)
		case w.Resource != "" && (!w.Follows || !links):
			d.difference(w, c)
		case w.Resource != "":
		case w.Kind == ipam.KindLease && w.File == "": // of the DHCP daemon
			d.add(AttachmentBroken, "network "+c.Network, w.Text, affects(c)).causes = causes{StateUnwritable: here,
				DHCPDaemonAbsent: here, DHCPDaemonSilent: here, DHCPLeaseLost: here}
		case w.Kind == ipam.KindLease && w.Got == spec.Absent:
			d.add(LeaseMissing, w.File, "", affects(c, w.Object), "CONTAINER", c.ContainerID, "INTERFACE", c.IfName,
				"FILE", filepath.Join(w.File, w.Object))
		default:
			f := d.add(AttachmentBroken, "network "+c.Network, w.Text, affects(c))
			if errors.Is(w, syscall.ENOSPC) || errors.Is(w, syscall.EROFS) {
				f.causes = causes{StateUnwritable: here}
			}
		}
	}
}

// difference adds the finding for one difference of a resource.
func (d *Doctor) difference(w spec.Difference, c attach.Cached) {
	inside := w.Where == spec.InContainer
	text := w.Resource + ": " + w.Text
	switch {
	case w.Field == "table" && w.Got == spec.Absent:
		d.add(PacketFilterMissing, "host", "table "+w.Want+" is missing", affects(c))
	case w.Kind == "Forward":
		d.add(AcceptsMissing, "packet filter", "", affects(c, w.Text), remade(w, c)...)
	case w.Rule && w.Field == "route": // ofPaths finds out why, if it follows a packet there
		d.strays = append(d.strays, strayed{w.Text, c})
	case w.Rule && w.Field == "hairpin": // of the port, which the bridge's plugin may want, too
		d.add(HostInterfaceChanged, "host", "hairpin is false, want true", affects(c), remade(w, c)...)
	case w.Rule:
		d.add(PacketFilterIncomplete, "packet filter", "", affects(c, text), remade(w, c)...)
	case w.Kind == "Forwarding":
		d.add(ForwardingOff, "host", w.Text, affects(c), "fix", "fairlead repair")
	case inside && w.Field == "state" && w.Got == "down":
		d.add(ContainerInterfaceDown, "container", "", affects(c, c.IfName+" is down"), how(advice.Remake(c))...)
	case w.Kind == "Bridge" && w.Link != "":
		d.bridge(w, c)
	case w.Kind == "Gateway" && (w.Field == "" || w.LacksLink()):
		d.add(BridgeAddressMissing, w.Link, "", affects(c, text))
	case w.Kind == "Gateway" && w.Field == "route":
		d.gatewayRoute(w, c)
	case w.Kind == "Gateway": // a setting of the bridge, whichever of its gateways needs it
		d.add(HostStateDiffers, w.Link, w.Text, affects(c))
	case w.Kind == "Veth":
		d.veth(w, c)
	case inside && w.Kind == "Addr":
		d.add(ContainerAddressMissing, "container", "", affects(c, text), how(advice.Remake(c))...)
	case inside && w.Kind == "Route":
		d.routeMissing(c, text, advice.RouteTo(w.Object, c))
	case inside || w.Kind == "Sysctl":
		d.add(ContainerStateDiffers, "container", "", affects(c, text), how(advice.Remake(c))...)
	default:
		d.add(HostStateDiffers, "host", text, affects(c), remade(w, c)...)
	}
}

// gatewayRoute adds the finding for the route to a gateway's subnet, which repair adds but does not replace.
func (d *Doctor) gatewayRoute(w spec.Difference, c attach.Cached) {
	subnet, err := netip.ParsePrefix(w.Want)
	if err != nil || w.Got == spec.Absent {
		d.unrouted(c, w.Link, subnet, "")
		return
	}
	for _, ip := range c.Result.IPs {
		if gw := netip.PrefixFrom(ip.Gateway, subnet.Bits()); gw.Masked() == subnet {
			d.unrouted(c, w.Link, subnet, w.Got, routing(w.Link, gw))
		}
	}
}

func (d *Doctor) bridge(w spec.Difference, c attach.Cached) {
	fix := remade(w, c)
	switch {
	case w.LacksLink():
		d.add(BridgeMissing, w.Link, "bridge "+w.Link+" does not exist", affects(c), fix...)
	case w.Field == "state" && w.Got == "down":
		d.add(BridgeDown, w.Link, "bridge "+w.Link+" is down", affects(c), fix...)
	default:
		d.add(BridgeChanged, w.Link, w.Text, affects(c), fix...)
	}
}

// veth adds the finding for a difference of a veth pair.
func (d *Doctor) veth(w spec.Difference, c attach.Cached) {
	onHost := w.Where == spec.OnHost
	switch {
	case (w.LacksLink() || w.Field == "name") && !onHost:
		d.add(ContainerInterfaceMissing, "container", "", affects(c, w.Text), how(advice.Remake(c))...)
	case w.Field == "name" && onHost:
		d.add(HostInterfaceRenamed, "host",
			fmt.Sprintf("the host-side interface %s is called %s now", w.Want, w.Got), affects(c), "NOW", w.Got, "THEN",
			w.Want)
	case w.Field == "host state" && w.Got == "down":
		d.add(HostInterfaceDown, "host", "", affects(c, w.Link))
	case w.Field == "master" && onHost:
		d.add(HostInterfaceDetached, w.Want, "a host-side interface is not a port of bridge "+w.Want, affects(c,
			w.Link))
	case w.Repair == spec.ByRepair, strings.HasPrefix(w.Field, "host "):
		d.add(HostInterfaceChanged, "host", w.Text, affects(c, w.Link), remade(w, c)...)
	default:
		d.add(ContainerInterfaceChanged, "container", "", affects(c, w.Text), how(advice.Remake(c))...)
	}
}

// remade returns the correction of a difference that repair cannot correct, else nothing.
func remade(w spec.Difference, c attach.Cached) []string {
	if w.Repair == spec.ByRepair {
		return nil
	}
	return how(advice.Remake(c))
}
