package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/cli/app"
	"github.com/fairlead-cni/fairlead/cli/dhcp"
	"github.com/fairlead-cni/fairlead/cli/netconf"
	"github.com/fairlead-cni/fairlead/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/spec"
)

// asksDaemon is the beginning of errors of the plugin dhcp that could not reach its daemon.
const asksDaemon = "ask the DHCP daemon: "

// dhcp checks the leases of a network that the DHCP daemon keeps.
func (d *Doctor) dhcp(ctx context.Context, n *netconf.Network) {
	if !byDHCP(n.List) {
		return
	}
	socket := dhcp.ConfiguredSocket(n.Name)
	if socket == "" {
		socket = rpc.DefaultSocket
	}
	list, err := dhcp.Leases(ctx, socket, func(l dhcp.Leased) bool { return l.Network == n.Name })
	switch {
	case err == nil:
		d.leased(n.Name, list, time.Now())
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED): // STATUS reports this
	case app.Denied(err):
		d.Blind("the leases of network %s: %v", n.Name, err)
	default:
		d.remark("the leases of network %s are not known: %v", n.Name, err)
	}
}

func byDHCP(l *spec.List) bool {
	return slices.ContainsFunc(l.WrittenOut().Plugins, func(p *spec.Conf) bool { return p.IPAMType == "dhcp" })
}

// leased adds findings for leases that have expired, or that expire soon because their server does not answer.
func (d *Doctor) leased(network string, list []dhcp.Leased, now time.Time) {
	for _, l := range list {
		var hit []affected
		for _, c := range d.Mine {
			if c.Owner() == (spec.Owner{Network: l.Network, ContainerID: l.ContainerID, IfName: l.IfName}) {
				hit = who(c, leaseText(l, now))
			}
		}
		switch {
		case d.named && hit == nil:
		case l.State == "lost":
			d.add("dhcp-lease-lost", "network "+network, "", hit, "NET", network)
		case l.State == "rebinding", l.State == "renewing" && l.Reason != "": // a try has failed
			d.add("dhcp-server-silent", "network "+network, "the DHCP server "+l.Server+" does not answer", hit, "NET",
				network)
		}
	}
}

// leaseText says when a lease expires.
func leaseText(l dhcp.Leased, now time.Time) string {
	text := l.What()
	if l.Ends != nil {
		if left := l.Ends.Sub(now).Round(time.Second); left > 0 {
			text += fmt.Sprintf(" ends in %v", left)
		} else {
			text += fmt.Sprintf(" expired %v ago", -left)
		}
	}
	if l.Reason != "" {
		text += ": " + l.Reason
	}
	return text
}
