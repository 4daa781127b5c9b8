package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/kernel/foreign"
	"github.com/fairlead-cni/fairlead/kernel/nft"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/cli/advice"
	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/netconf"
	"github.com/fairlead-cni/fairlead/plugin"
	"github.com/fairlead-cni/fairlead/repair"
	"github.com/fairlead-cni/fairlead/sdk"
	"github.com/fairlead-cni/fairlead/spec"
)

// ofRepair adds what a dry run of repair finds: it compares each attachment with its plan.
func (d *Doctor) ofRepair() {
	report := d.repairs(d.Mine, false)
	if report == nil {
		return
	}
	for _, p := range report.Problems {
		d.add("cache-unreadable", "/var/lib/cni", p, nil)
	}
	d.Found = report.Findings
	foreigners := 0
	mine := map[spec.Owner]int{}
	for i, c := range d.Mine {
		mine[c.Owner()] = i
	}
	for _, f := range report.Findings {
		i, ok := mine[f.Owner]
		if !ok {
			continue
		}
		if f.State == repair.Foreign || f.State == repair.Handed || f.State == repair.Offline {
			foreigners++
			d.byResult(d.Mine[i])
		}
		d.attachment(f, d.Mine[i])
	}
	if foreigners > 0 {
		d.remark("%d of %d attachments are of other plugins: doctor compares them with the result of ADD, and "+
			"knows little of their rules", foreigners, len(d.Mine))
	}
}

// RulesMissing are the attachments, of all networks or of one, whose rules are missing in the packet filter.
func (d *Doctor) RulesMissing(network string) map[spec.Owner]bool {
	missing := map[spec.Owner]bool{}
	of := slices.DeleteFunc(slices.Clone(d.All), func(c attach.Cached) bool {
		return network != "" && c.Network != network
	})
	report := d.repairs(of, true)
	if report == nil {
		return missing
	}
	for _, f := range report.Findings {
		bare := func(w sdk.Wrong) bool {
			return len(w.What) > 0 && !slices.ContainsFunc(w.What, app.DeniedText)
		}
		missing[f.Owner] = f.State != repair.Gone && slices.ContainsFunc(f.Wrong, bare)
	}
	return missing
}

// repairs is what a repair of these attachments would find, in all or in the packet filter alone; nil if that cannot be
// known.
func (d *Doctor) repairs(of []attach.Cached, filter bool) *repair.Report {
	if conn, err := nft.Open(d.HostNS); err != nil {
		d.Blind("the packet filter: %v", err)
	} else if _, err := conn.BaseChains(); err != nil {
		d.Blind("the host side of attachments, and the packet filter: %v", err)
		return nil
	}
	defer d.LogLater(foreign.Doubtful)() // ofFilters finds for certain what drops
	r := repair.Repairer{
		Runtime: &attach.Runtime{Stderr: io.Discard}, Plugins: plugin.All(), Foreign: netconf.Foreign(),
		External: netconf.Externals(), Now: netconf.Configured, DryRun: true, Firewall: filter,
		List: func() ([]attach.Cached, []error) { return slices.Clone(of), d.unread },
	}
	report, err := r.Run(d.Ctx)
	if err != nil {
		d.Blind("the plans of attachments: %v", err)
		return nil
	}
	return report
}

// attachment adds the findings of one attachment.
func (d *Doctor) attachment(f repair.Finding, c attach.Cached) {
	switch f.State {
	case repair.Gone:
		d.add("container-gone", "network "+c.Network, "", who(c, f.Drift...))
		return
	case repair.Offline:
		rules := slices.DeleteFunc(slices.Clone(f.Drift), func(line string) bool {
			return strings.HasPrefix(line, "link ") // byResult reports it
		})
		if len(rules) > 0 {
			d.add("reference-rules-missing", "packet filter", "", who(c, rules...))
		}
		return
	case repair.InOrder, repair.Foreign, repair.Handed, repair.Busy:
		return
	}
	if len(f.Left) > 0 {
		d.add("del-unfinished", "network "+c.Network, "", who(c, strings.Join(f.Left, ", ")+" failed"),
			"", strings.Trim(advice.Deletes(c.Owner(), c.Netns), "`"))
		return
	}
	said := map[string]bool{}
	links := slices.ContainsFunc(f.Wrong, func(w sdk.Wrong) bool { return !w.Follows })
	for _, w := range f.Wrong {
		for _, line := range w.What {
			said[w.Resource+": "+line] = true
			if app.DeniedText(line) {
				d.Blind("%s of %s: %s", w.Resource, c.Owner(), line)
			} else if !w.Follows || !links {
				d.drift(w, line, c)
			}
		}
	}
	for _, line := range f.Drift {
		switch {
		case said[line]:
		case app.DeniedText(line):
			d.Blind("%s: %s", c.Owner(), line)
		case strings.HasPrefix(line, "lease ") && strings.Contains(line, ": is missing in "):
			address, dir, _ := strings.Cut(strings.TrimPrefix(line, "lease "), ": is missing in ")
			d.add("lease-missing", dir, "", who(c, address), "NET", c.Network, "ADDRESS", address)
		default:
			d.add("attachment-broken", "network "+c.Network, line, who(c))
		}
	}
}

// drift adds the finding for one difference of a resource.
func (d *Doctor) drift(w sdk.Wrong, line string, c attach.Cached) {
	link, inside := linkOf(w.Resource)
	text := w.Resource + ": " + line
	switch {
	case strings.HasPrefix(line, "nft table ") && strings.HasSuffix(line, " is missing"):
		d.add("packet-filter-missing", "host", strings.TrimPrefix(line, "nft "), who(c))
	case w.Kind == "Forward":
		d.add("accepts-missing", "packet filter", "", who(c, line), remade(w, c)...)
	case w.Rule && strings.HasPrefix(line, "route to "): // ofPaths finds out why, if it follows a packet there
		d.astray = append(d.astray, strayed{line, c})
	case w.Rule:
		d.add("packet-filter-incomplete", "packet filter", "", who(c, text), remade(w, c)...)
	case w.Kind == "Forwarding":
		d.add("forwarding-off", "host", line, who(c), "", "fairlead repair")
	case inside && strings.HasPrefix(line, "state is down"):
		d.add("container-interface-down", "container", "", who(c, c.IfName+" is down"), "", advice.RemakeCommand(c))
	case w.Kind == "Bridge" && link != "":
		d.bridge(line, link, c, remade(w, c))
	case w.Kind == "Gateway" && !inside:
		d.add("bridge-address-missing", link, "", who(c, text))
	case w.Kind == "Veth":
		d.veth(w, line, link, c)
	case inside && w.Kind == "Addr":
		d.add("container-address-missing", "container", "", who(c, text), "", advice.RemakeCommand(c))
	case inside && w.Kind == "Route":
		d.add("container-route-missing", "container", "", who(c, text), "",
			advice.RouteCommand(c, advice.RouteSaid(w.Resource, c)))
	case inside || strings.HasPrefix(w.Resource, "sysctl "):
		d.add("container-state-differs", "container", "", who(c, text), "", advice.RemakeCommand(c))
	default:
		d.add("host-state-differs", "host", text, who(c), remade(w, c)...)
	}
}

func (d *Doctor) bridge(line, link string, c attach.Cached, fix []string) {
	switch {
	case strings.HasSuffix(line, "link does not exist"):
		d.add("bridge-missing", link, "bridge "+link+" does not exist", who(c), fix...)
	case strings.HasPrefix(line, "state is down"):
		d.add("bridge-down", link, "bridge "+link+" is down", who(c), fix...)
	default:
		d.add("bridge-changed", link, line, who(c), fix...)
	}
}

// veth adds the finding for a veth pair. The line of the difference names the end.
func (d *Doctor) veth(w sdk.Wrong, line, link string, c attach.Cached) {
	now, renamed := strings.CutSuffix(line, " now")
	_, now, _ = strings.Cut(now, "it is called ")
	switch {
	case strings.HasPrefix(line, "link "+c.IfName+": "):
		d.add("container-interface-missing", "container", "", who(c, line), "", advice.RemakeCommand(c))
	case renamed && now != "":
		d.add("host-interface-renamed", "host", fmt.Sprintf("the host-side interface %s is called %s now", link, now),
			who(c), "NOW", now, "THEN", link)
	case strings.HasPrefix(line, "host state is down"):
		d.add("host-interface-down", "host", "", who(c, link))
	case strings.HasPrefix(line, "master is "):
		_, bridge, _ := strings.Cut(line, "want ")
		d.add("host-interface-detached", bridge, "a host-side interface is not a port of bridge "+bridge, who(c, link))
	case w.Fixes:
		d.add("host-interface-changed", "host", line, who(c, link))
	default:
		d.add("container-interface-changed", "container", "", who(c, line), "", advice.RemakeCommand(c))
	}
}

// linkOf returns the link that a resource is about: the last one it names. inside reports whether the link is the
// container's.
func linkOf(text string) (link string, inside bool) {
	for _, word := range strings.Fields(text) {
		if name, ok := strings.CutPrefix(word, "host/"); ok {
			link = strings.TrimSuffix(name, ":")
		}
		inside = inside || strings.HasPrefix(word, "cont/")
	}
	return link, inside
}

// remade returns the correction of a difference that repair cannot correct, else nothing.
func remade(w sdk.Wrong, c attach.Cached) []string {
	if w.Fixes {
		return nil
	}
	return []string{"", advice.RemakeCommand(c)}
}
