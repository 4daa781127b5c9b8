package doctor

import (
	"cmp"
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

// dhcp checks the leases of a network that the DHCP daemon keeps.
func (d *Doctor) dhcp(ctx context.Context, n *netconf.Network) {
	if !byDHCP(n.List) {
		return
	}
	list, err := leasesOf(ctx, n)
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

// leasesOf returns the leases of a network from its DHCP daemon.
func leasesOf(ctx context.Context, n *netconf.Network) ([]dhcp.Leased, error) {
	socket := cmp.Or(dhcp.ConfiguredSocket(n.Name), rpc.DefaultSocket)
	return dhcp.Leases(ctx, socket, func(l dhcp.Leased) bool { return l.Network == n.Name })
}

// daemonless adds a finding if the DHCP daemon of a network does not answer, and reports whether it did. what is what
// STATUS said.
func (d *Doctor) daemonless(n *netconf.Network, what string, on []affected) bool {
	ctx, cancel := context.WithTimeout(d.Ctx, 2*answerTime)
	defer cancel()
	id := DHCPDaemonAbsent
	switch _, err := leasesOf(ctx, n); {
	case errors.Is(err, context.DeadlineExceeded):
		id = DHCPDaemonSilent
	case !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ECONNREFUSED):
		return false
	}
	d.add(id, "network "+n.Name, what, on)
	return true
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
			d.add(DHCPLeaseLost, "network "+network, "", hit, "NET", network)
		case l.State == "rebinding", l.State == "renewing" && l.Reason != "": // a try has failed
			d.add(DHCPServerSilent, "network "+network, "the DHCP server "+l.Server+" does not answer", hit, "NET",
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
