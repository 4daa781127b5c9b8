package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/spec"
)

// asksDaemon begins the errors of plugin dhcp that could not ask its daemon.
const asksDaemon = "ask the DHCP daemon: "

// dhcp looks at the leases of a network that the DHCP daemon keeps.
func (d *doctor) dhcp(ctx context.Context, n *network) {
	if !byDHCP(n.List) {
		return
	}
	socket := configuredSocket(n.Name)
	if socket == "" {
		socket = rpc.DefaultSocket
	}
	list, err := leases(ctx, socket, func(l leased) bool { return l.Network == n.Name })
	switch {
	case err == nil:
		d.leased(n.Name, list, time.Now())
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED): // which STATUS says
	case denied(err):
		d.blind("the leases of network %s: %v", n.Name, err)
	default:
		d.remark("the leases of network %s are not known: %v", n.Name, err)
	}
}

func byDHCP(l *spec.List) bool {
	return slices.ContainsFunc(l.WrittenOut().Plugins, func(p *spec.Conf) bool { return p.IPAMType == "dhcp" })
}

// leased says which leases are over, or end soon because their server does not answer.
func (d *doctor) leased(network string, list []leased, now time.Time) {
	for _, l := range list {
		var hit []affected
		for _, c := range d.mine {
			if c.Owner() == (spec.Owner{Network: l.Network, ContainerID: l.ContainerID, IfName: l.IfName}) {
				hit = who(c, leaseText(l, now))
			}
		}
		switch {
		case d.named && hit == nil:
		case l.State == "lost":
			d.add("dhcp-lease-lost", "network "+network, "", hit, "NET", network)
		case l.State == "rebinding":
			d.add("dhcp-server-silent", "network "+network, "the DHCP server "+l.Server+" does not answer", hit, "NET", network)
		}
	}
}

// leaseText says of a lease when it ends.
func leaseText(l leased, now time.Time) string {
	text := l.what()
	if l.Ends != nil {
		if left := l.Ends.Sub(now).Round(time.Second); left > 0 {
			text += fmt.Sprintf(" ends in %v", left)
		} else {
			text += fmt.Sprintf(" is over since %v", -left)
		}
	}
	if l.Reason != "" {
		text += ": " + l.Reason
	}
	return text
}
