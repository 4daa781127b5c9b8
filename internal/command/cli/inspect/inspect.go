// Package inspect is fairlead inspect: it collects and prints everything about one container's networks. Package
// doctor finds the faults in them.
package inspect

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/calls"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/calllog"
	"github.com/fairlead-cni/fairlead/internal/command/cli/doctor"
	"github.com/fairlead-cni/fairlead/internal/command/cli/ipam"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/command/cli/term"
	"github.com/fairlead-cni/fairlead/internal/repair"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/spf13/cobra"
)

// inspection is the answer of inspect.
type inspection struct {
	ContainerID string       `json:"containerID"`
	Name        string       `json:"name,omitempty"`
	Netns       string       `json:"netns"`
	State       string       `json:"state"` // alive, gone, unknown
	Attachments []*Inspected `json:"attachments"`
	Listeners   []string     `json:"listeners,omitempty"` // in the container
	DNS         *dnsSeen     `json:"dns,omitempty"`
	Calls       []calls.Line `json:"calls,omitempty"`

	OK       bool                `json:"ok"`
	Findings []*doctor.Diagnosed `json:"findings"` // as of doctor
	Unseen   []string            `json:"unseen,omitempty"`
}

// callsShown is how many of the last calls are printed.
const callsShown = 5

// dnsSeen is how the container resolves names.
type dnsSeen struct {
	Nameservers []string `json:"nameservers"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
}

// Inspected is one attachment of the container.
type Inspected struct {
	Network string    `json:"network"`
	IfName  string    `json:"ifname"`
	Since   time.Time `json:"since"` // when ADD was recorded

	Links     []linkEnd       `json:"links"` // from the container outwards
	Addresses []string        `json:"addresses"`
	Routes    []string        `json:"routes"`
	Ports     []inspectedPort `json:"ports,omitempty"`
	Leases    []leaseSeen     `json:"leases,omitempty"`
	Rates     []string        `json:"rates,omitempty"`
	Rules     []inspectedRule `json:"rules,omitempty"`
	Filters   []filterVerdict `json:"filters,omitempty"`
	Plan      []string        `json:"plan,omitempty"`    // what should exist
	Differs   []string        `json:"differs,omitempty"` // differences from the plan or the result of ADD
}

// linkEnd is a link on the way from the container to the host.
type linkEnd struct {
	Name    string `json:"name"`
	Where   string `json:"where"` // container or host
	Kind    string `json:"kind,omitempty"`
	MAC     string `json:"mac,omitempty"`
	MTU     int    `json:"mtu,omitempty"`
	Up      bool   `json:"up"`
	Missing bool   `json:"missing,omitempty"`
	Cut     bool   `json:"cut,omitempty"` // it should be connected with the one before, but is not
}

// leaseSeen is the lease of an address.
type leaseSeen struct {
	Address string     `json:"address"`
	Of      string     `json:"of"` // the range of host-local, or the protocol of a DHCP lease
	State   string     `json:"state"`
	Holder  string     `json:"holder,omitempty"` // the container that has it, if it is another one
	Key     string     `json:"key,omitempty"`    // the sticky key
	Since   time.Time  `json:"since"`
	Until   *time.Time `json:"until,omitempty"`
}

func (l leaseSeen) String() string {
	words := []string{l.Address + " of " + l.Of, l.State}
	if l.Holder != "" {
		words = append(words, "held by container "+attached.ShortID(l.Holder))
	}
	if l.Key != "" {
		words = append(words, "sticky key "+l.Key)
	}
	words = append(words, "since "+ago(l.Since))
	if l.Until != nil {
		words = append(words, "until "+l.Until.Format(time.RFC3339))
	}
	return strings.Join(words, ", ")
}

// inspectedPort is a published port.
type inspectedPort struct {
	Port      string   `json:"port"`
	Listeners []string `json:"listeners"` // in the container
}

// inspectedRule is a rule of the packet filter that should exist.
type inspectedRule struct {
	Rule      string   `json:"rule"`
	Reference bool     `json:"reference,omitempty"` // the reference plugins made it
	Differs   []string `json:"differs,omitempty"`
}

// filterVerdict is what other programs' packet filters do with packets.
type filterVerdict struct {
	Packets string `json:"packets"`
	Verdict string `json:"verdict"` // accepted, dropped, undecided
	Why     string `json:"why,omitempty"`
}

// Command is `fairlead inspect`.
func Command(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "inspect CONTAINER", GroupID: "look", Args: app.Operands("CONTAINER"),
		Short: "Show the networks of a container, and what differs from the plan",
		Long: `Show the interfaces of a container with their other ends, its addresses, routes, published ports and the
processes that listen, its packet filter rules, what the rules of other programs do with its packets, its name servers,
leases and rates, and the last calls of plugins for it (fairlead log). Differences from the plan are marked, as doctor
finds them. Nothing is changed, and no packet is sent.

CONTAINER is a pod as NAMESPACE/NAME, podman's name, an ID or its beginning, NET/ID, the name or path of a network
namespace, the PID of a process in it, an address, a MAC, a port of the host or :PORT, or a host-side interface. If
several containers match, they are listed.

Exit status: 0 in order (there may be warnings), 1 something could not be seen, 2 several containers match, 3 a fault,
4 no such container.`,
		Example: `  fairlead inspect default/web-0
  fairlead inspect 10.87.0.5
  fairlead inspect :8080`,
		RunE: func(c *cobra.Command, args []string) error { return inspect(a, args[0]) },

		ValidArgsFunction: attached.CompleteContainers,
	}
}

func inspect(a *app.App, arg string) (err error) {
	d, err := doctor.Open(a)
	if err != nil {
		return err
	}
	defer d.Close()
	if d.Selected, err = d.Seek(arg); err != nil {
		return err
	}
	doc := inspected(d)
	d.SetStatus()
	if a.JSON() {
		return a.PrintJSON(doc)
	}
	doc.print(a, d.Selected[0])
	return d.Ctx.Err()
}

// PrintJSON prints the document of a container whose attachments are in d.Selected.
func PrintJSON(w io.Writer, d *doctor.Doctor) error { return term.PrintJSON(w, inspected(d)) }

// inspected examines a container, whose attachments are in d.Selected.
func inspected(d *doctor.Doctor) (doc *inspection) {
	d.Examine()
	c := d.Selected[0]
	doc = &inspection{ContainerID: c.ContainerID, Name: attached.Name(c), Netns: c.Netns, State: d.State(c)}
	for _, c := range d.Selected {
		doc.Attachments = append(doc.Attachments, attachmentSeen(d, c, doc))
	}
	var err error
	if doc.Calls, err = calllog.LastCalls(d.Ctx, c.ContainerID, callsShown); err != nil {
		d.Unexamined("the log of calls: %v", err)
	}
	doc.OK, doc.Findings, doc.Unseen = d.OK, d.Findings, d.Unseen
	return doc
}

// attachmentSeen examines one attachment, and adds what concerns the whole container to doc.
func attachmentSeen(d *doctor.Doctor, c attach.Cached, doc *inspection) *Inspected {
	i := &Inspected{Network: c.Network, IfName: c.IfName, Since: c.Stored, Links: []linkEnd{}, Addresses: []string{},
		Routes: []string{}, Leases: leasesOf(d, c)}
	var inner *rtnl.Link
	if !d.Gone(c) && c.Netns != "" {
		d.Inside(c, func(ns *kernel.NS) {
			i.portsSeen(ns, c, d.Holder)
			inner = LinkSeen(d, ns, c, i)
			if doc.Listeners == nil {
				doc.Listeners = Listening(ns, d.Holder)
			}
			if servers := doctor.ContainerServers(ns, c); doc.DNS == nil && len(servers) > 0 {
				doc.DNS = &dnsSeen{Nameservers: servers}
			}
		})
	}
	i.Links = append(i.Links, HostEnds(d, c, inner)...)
	if c.Result != nil && doc.DNS != nil && slices.Equal(doc.DNS.Nameservers, c.Result.DNS.Nameservers) {
		doc.DNS.Domain, doc.DNS.Search = c.Result.DNS.Domain, c.Result.DNS.Search
	}
	for _, f := range d.Plans().Findings {
		if f.Owner == c.Owner() {
			i.plan(f)
		}
	}
	for _, v := range d.Verdicts {
		if v.From.Owner() == c.Owner() {
			f := filterVerdict{Packets: v.What, Verdict: v.Outcome.String()}
			if v.Chain.Name != "" {
				f.Why = v.Verdict.String()
			}
			i.Filters = append(i.Filters, f)
		}
	}
	for _, f := range d.Findings {
		for _, hit := range f.Containers {
			if hit.Container != c.Owner().String() {
				continue
			}
			line := string(f.ID) + ": " + f.What
			if len(hit.Details) == 1 { // the finding lists all of them
				line += "; " + hit.Details[0]
			}
			i.Differs = append(i.Differs, line)
		}
	}
	return i
}

// plan adds what should exist, and marks the rules that differ.
func (i *Inspected) plan(f repair.Finding) {
	for _, p := range f.Plan {
		i.Plan = append(i.Plan, p.Resource)
		switch {
		case p.Rule:
			rule := inspectedRule{Rule: p.Resource, Reference: p.Reference}
			for _, d := range f.Differences {
				if d.Resource == p.Resource {
					rule.Differs = append(rule.Differs, d.Text)
				}
			}
			i.Rules = append(i.Rules, rule)
		case p.Kind == "Qdisc" || p.Kind == "Limit":
			i.Rates = append(i.Rates, p.Resource)
		}
	}
}

// leasesOf returns the leases of an attachment's addresses.
func leasesOf(d *doctor.Doctor, c attach.Cached) (all []leaseSeen) {
	l := c.AttachedBy(nil)
	if l == nil {
		return nil
	}
	if p, err := netconf.PoolOf(l, true); err == nil {
		var addrs []netip.Addr
		for _, a := range attached.OwnAddresses(c) {
			addrs = append(addrs, a.Addr())
		}
		if len(addrs) == 0 {
			return nil
		}
		book, err := d.Leases(d.Ctx, p, addrs...)
		if err != nil {
			d.Unexamined("the leases of network %s: %v", l.Name, err)
			return nil
		}
		for _, a := range addrs {
			for _, x := range ipam.LookUp(l.Name, a, book) {
				seen := leaseSeen{Address: x.Address, Of: cmp.Or(x.Range, "in no range"), State: x.State, Key: x.Key,
					Since: c.Stored, Until: x.Until}
				if x.ContainerID != c.ContainerID {
					seen.Holder = x.ContainerID
				}
				all = append(all, seen)
			}
		}
		return all
	}
	if netconf.AllocatesBy(l, "dhcp") {
		return dhcpLeases(d, c)
	}
	return nil
}

// dhcpLeases returns the leases that the DHCP daemon keeps for an attachment.
func dhcpLeases(d *doctor.Doctor, c attach.Cached) (all []leaseSeen) {
	kept, err := d.DHCPLeases(c.Network)
	if err != nil {
		d.Unexamined("the leases of %s: %v", attached.ShortOwner(c), err)
	}
	for _, l := range kept {
		if l.Owner() == c.Owner() {
			all = append(all, leaseSeen{Address: l.What(), Of: l.Protocol, State: l.State, Since: l.Since,
				Until: l.Ends})
		}
	}
	return all
}

// ago returns a time, and how long ago it was.
func ago(t time.Time) string {
	return fmt.Sprintf("%s (%v)", t.Format(time.RFC3339), time.Since(t).Round(time.Second))
}
