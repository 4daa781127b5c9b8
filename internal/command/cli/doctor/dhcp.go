package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/app"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/dhcp"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/internal/dhcp/rpc"
	"github.com/fairlead-cni/fairlead/spec"
)

// dhcp checks the leases of a network that the DHCP daemon keeps.
func (d *Doctor) dhcp(n *netconf.Network) {
	if !netconf.AllocatesBy(n.List, "dhcp") {
		return
	}
	leases, err := d.DHCPLeases(n.Name)
	switch {
	case err == nil:
		d.leased(n.Name, leases, time.Now())
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED): // STATUS reports this
	case app.Denied(err):
		d.Unexamined("the leases of network %s: %v", n.Name, err)
	default:
		d.remark("the leases of network %s are not known: %v", n.Name, err)
	}
}

// daemonTime is how long a DHCP daemon may take to list its leases, for which it asks no server.
const daemonTime = 5 * time.Second

// A daemonAnswer is what a DHCP daemon said when it was asked for its leases.
type daemonAnswer struct {
	leases []dhcp.Leased
	err    error
}

// DHCPLeases returns all leases of the DHCP daemon of a network. Each daemon is asked once in a run.
func (d *Doctor) DHCPLeases(network string) ([]dhcp.Leased, error) {
	socket := cmp.Or(dhcp.ConfiguredSocket(network), rpc.DefaultSocket)
	answer, asked := d.daemons[socket]
	if !asked {
		ctx, cancel := context.WithTimeout(d.Ctx, daemonTime)
		defer cancel()
		answer.leases, answer.err = dhcp.Leases(ctx, socket, func(dhcp.Leased) bool { return true })
		d.daemons[socket] = answer
	}
	return answer.leases, answer.err
}

// daemonless returns the finding about a network's DHCP daemon that does not answer, and the error; "" if it answers.
// None is asked for a network without DHCP.
func (d *Doctor) daemonless(l *spec.List) (ID, error) {
	if !netconf.AllocatesBy(l, "dhcp") {
		return "", nil
	}
	_, err := d.DHCPLeases(l.Name)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return DHCPDaemonSilent, err
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return DHCPDaemonAbsent, err
	}
	return "", nil
}

// silent reports whether the DHCP daemon of an attachment does not answer.
func (d *Doctor) silent(c attach.Cached) bool {
	l := c.AttachedBy(nil)
	if l == nil {
		return false
	}
	id, _ := d.daemonless(l)
	return id == DHCPDaemonSilent
}

// leased adds findings for leases of a network that have expired, or that expire soon because their server does not
// answer.
func (d *Doctor) leased(network string, list []dhcp.Leased, now time.Time) {
	for _, l := range list {
		var hit []affected
		if c := attached.ByOwner(d.Selected, l.Owner()); c != nil {
			hit = affects(*c, leaseText(l, now))
		}
		switch {
		case l.Network != network, d.named && hit == nil:
		case l.State == "lost":
			d.add(DHCPLeaseLost, "network "+network, "", hit, "NET", network)
		case l.State == "rebinding", l.State == "renewing" && l.Reason != "": // a try has failed
			what := "the DHCP server " + l.Server + " does not answer"
			d.add(DHCPServerSilent, "network "+network, what, hit, "NET", network)
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
