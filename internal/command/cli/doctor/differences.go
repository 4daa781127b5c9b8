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
	report := d.Plans()
	for _, p := range report.Problems {
		d.add(CacheUnreadable, "/var/lib/cni", p, nil)
	}
	foreigners := 0
	selected := map[spec.Owner]attach.Cached{}
	for _, c := range d.Selected {
		selected[c.Owner()] = c
	}
	for _, f := range report.Findings {
		c, ok := selected[f.Owner]
		if !ok {
			continue
		}
		if f.State == repair.Foreign || f.State == repair.Handed || f.State == repair.Offline {
			foreigners++
			d.byResult(c)
		}
		d.attachment(f, c)
	}
	if foreigners > 0 {
		d.remark("%d of %d attachments are of other plugins: doctor compares them with the result of ADD, and "+
			"knows little of their rules", foreigners, len(d.Selected))
	}
}

// Plans returns how the attachments differ from their plans. It compares once in a run.
func (d *Doctor) Plans() *repair.Report {
	if d.plans == nil {
		d.plans = d.repairs(d.Selected, false)
	}
	return d.plans
}

// differs reports whether a resource of a kind differs from the plan of an attachment that was asked about.
func (d *Doctor) differs(kind string) bool {
	is := func(w spec.Difference) bool { return w.Kind == kind && w.Got != spec.Denied }
	return slices.ContainsFunc(d.Plans().Findings, func(f repair.Finding) bool {
		return slices.ContainsFunc(f.Differences, is)
	})
}

// RulesMissing returns which of these attachments lack rules in the packet filter.
func (d *Doctor) RulesMissing(of []attach.Cached) map[spec.Owner]bool {
	missing := map[spec.Owner]bool{}
	for _, f := range d.repairs(of, true).Findings {
		bare := func(d spec.Difference) bool { return d.Resource != "" && d.Got != spec.Denied }
		missing[f.Owner] = f.State != repair.Gone && slices.ContainsFunc(f.Differences, bare)
	}
	return missing
}

// repairs is what a repair of these attachments would find, in all or in the packet filter alone. If that cannot be
// known, the report is empty.
func (d *Doctor) repairs(of []attach.Cached, filter bool) *repair.Report {
	if conn, err := nft.Open(d.Host); err != nil {
		d.Unexamined("the packet filter: %v", err)
	} else if _, err := conn.BaseChains(); err != nil {
		d.Unexamined("the host side of attachments, and the packet filter: %v", err)
		return &repair.Report{}
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
		return &repair.Report{}
	}
	return report
}

// attachment adds the findings of one attachment.
func (d *Doctor) attachment(f repair.Finding, c attach.Cached) {
	network := "network " + c.Network
	switch {
	case f.Held: // the container lives, and another one has its address
		d.addWith(AttachmentBroken, network, f.Differences.Error(), affects(c), advice.Remake(c))
	case f.State == repair.Gone:
		d.add(ContainerGone, network, "", affects(c, f.Differences.Lines()...))
	case f.State == repair.Offline:
		isLink := func(w spec.Difference) bool { return w.Resource == "" } // byResult reports links
		if rules := slices.DeleteFunc(slices.Clone(f.Differences), isLink); len(rules) > 0 {
			d.add(ReferenceRulesMissing, "packet filter", "", affects(c, rules.Lines()...))
		}
	case f.State != repair.Broken && f.State != repair.ToRepair:
	case len(f.Left) > 0:
		d.addWith(DELUnfinished, network, "", affects(c, strings.Join(f.Left, ", ")+" failed"),
			fix(unquoted(advice.Deletes(c.Owner(), c.Netns))))
	default:
		d.differences(f.Differences, c)
	}
}

// differences adds the findings for what differs from the plan of an attachment.
func (d *Doctor) differences(all spec.Differences, c attach.Cached) {
	network := "network " + c.Network
	isCause := func(w spec.Difference) bool { return w.Resource != "" && !w.Follows }
	hasCause := slices.ContainsFunc(all, isCause)
	for _, w := range all {
		switch {
		case w.Got == spec.Denied:
			d.Unexamined("%s of %s: %s", cmp.Or(w.Resource, "the attachment"), attached.ShortOwner(c), w.Text)
		case w.Follows && hasCause:
		case w.Resource != "":
			drift{w, d, c}.find()
		case w.Kind == ipam.KindLease && w.File == "": // of the DHCP daemon
			d.add(AttachmentBroken, network, w.Text, affects(c)).causes = causes{StateUnwritable: here,
				DHCPDaemonAbsent: here, DHCPDaemonSilent: here, DHCPLeaseLost: here}
		case w.Kind == ipam.KindLease && w.Got == spec.Absent:
			d.add(LeaseMissing, w.File, "", affects(c, w.Object), "CONTAINER", c.ContainerID, "INTERFACE", c.IfName,
				"FILE", filepath.Join(w.File, w.Object))
		default:
			f := d.add(AttachmentBroken, network, w.Text, affects(c))
			if errors.Is(w, syscall.ENOSPC) || errors.Is(w, syscall.EROFS) {
				f.causes = causes{StateUnwritable: here}
			}
		}
	}
}

// A drift is how a resource differs from the plan of an attachment.
type drift struct {
	spec.Difference
	d *Doctor
	c attach.Cached
}

// add adds a finding. Its advice is that of its kind if repair corrects the difference, else to attach the container
// again.
func (w drift) add(id ID, where, what string, details ...string) {
	who := affects(w.c, details...)
	if w.Repair == spec.ByRepair {
		w.d.add(id, where, what, who)
		return
	}
	w.d.addWith(id, where, what, who, advice.Remake(w.c))
}

// find adds the finding for a difference.
func (w drift) find() {
	inside := w.Where == spec.InContainer
	text := w.Resource + ": " + w.Text
	switch {
	case w.Field == "table" && w.Got == spec.Absent:
		w.add(PacketFilterMissing, "host", "table "+w.Want+" is missing")
	case w.Kind == "Forward":
		w.add(AcceptsMissing, "packet filter", "", w.Text)
	case w.Rule && w.Field == "route": // ofPaths finds out why, if it follows a packet there
		w.d.strays = append(w.d.strays, w)
	case w.Rule && w.Field == "hairpin": // of the port, which the bridge's plugin may want, too
		w.add(HostInterfaceChanged, "host", "hairpin is false, want true")
	case w.Rule:
		w.add(PacketFilterIncomplete, "packet filter", "", text)
	case w.Kind == "Forwarding":
		w.d.addWith(ForwardingOff, "host", w.Text, affects(w.c), fix("fairlead repair"))
	case inside && w.Field == "state" && w.Got == "down":
		w.add(ContainerInterfaceDown, "container", "", w.c.IfName+" is down")
	case w.Kind == "Bridge" && w.Link != "":
		w.bridge()
	case w.Kind == "Gateway" && (w.Field == "" || w.LacksLink()):
		w.add(BridgeAddressMissing, w.Link, "", text)
	case w.Kind == "Gateway" && w.Field == "route":
		w.gatewayRoute()
	case w.Kind == "Gateway": // a setting of the bridge, whichever of its gateways needs it
		w.add(HostStateDiffers, w.Link, w.Text)
	case w.Kind == "Veth":
		w.veth()
	case inside && w.Kind == "Addr":
		w.add(ContainerAddressMissing, "container", "", text)
	case inside && w.Kind == "Route":
		w.d.routeMissing(w.c, text, advice.RouteTo(w.Object, w.c))
	case inside || w.Kind == "Sysctl":
		w.add(ContainerStateDiffers, "container", "", text)
	default:
		w.add(HostStateDiffers, "host", text)
	}
}

func (w drift) bridge() {
	switch {
	case w.LacksLink():
		w.add(BridgeMissing, w.Link, "bridge "+w.Link+" does not exist")
	case w.Field == "state" && w.Got == "down":
		w.add(BridgeDown, w.Link, "bridge "+w.Link+" is down")
	default:
		w.add(BridgeChanged, w.Link, w.Text)
	}
}

// veth adds the finding for a difference of a veth pair.
func (w drift) veth() {
	onHost := w.Where == spec.OnHost
	ofHostEnd := w.Repair == spec.ByRepair || strings.HasPrefix(w.Field, "host ")
	switch {
	case w.Field == "name" && onHost:
		what := fmt.Sprintf("the host-side interface %s is called %s now", w.Want, w.Got)
		w.d.add(HostInterfaceRenamed, "host", what, affects(w.c), "NOW", w.Got, "THEN", w.Want)
	case w.Field == "name", w.LacksLink() && !onHost:
		w.add(ContainerInterfaceMissing, "container", "", w.Text)
	case w.Field == "host state" && w.Got == "down":
		w.add(HostInterfaceDown, "host", "", w.Link)
	case w.Field == "master" && onHost:
		w.add(HostInterfaceDetached, w.Want, "a host-side interface is not a port of bridge "+w.Want, w.Link)
	case ofHostEnd:
		w.add(HostInterfaceChanged, "host", w.Text, w.Link)
	default:
		w.add(ContainerInterfaceChanged, "container", "", w.Text)
	}
}

// gatewayRoute adds the finding for the route to a gateway's subnet, which repair adds but does not replace.
func (w drift) gatewayRoute() {
	if w.Got == spec.Absent {
		w.add(BridgeRouteMissing, w.Link, noRoute+w.Want)
		return
	}
	for _, ip := range w.c.Result.IPs {
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if gw.Masked().String() == w.Want {
			w.d.unrouted(w.c, w.Link, gw, w.Got)
		}
	}
}
