package daemon

import (
	"log/slog"
	"time"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"

	"github.com/fairlead-cni/fairlead/dhcp"
)

// settling is how long an interface plugin may take to put the addresses of a new lease on the link.
const settling = 3 * time.Second

// preferred is when the first of a lease's addresses stops being preferred, counted from when it was asked for;
// Forever: never before the lease is over.
func preferred(l *dhcp.Lease) time.Duration {
	first := dhcp.Forever
	for _, a := range l.Addresses {
		if a.Preferred > 0 && a.Preferred < a.Valid {
			first = min(first, a.Preferred)
		}
	}
	return first
}

// prefer tells the kernel for how long the addresses of a lease that are on the link are preferred (RFC 4862, 5.5.4),
// so that it deprecates them in time, be it that no server answers or that nobody keeps the lease by then. When a lease
// is over they are taken off by who keeps it, and not by the kernel. Those that the kernel makes have their times from
// their router. Of what had no such time, and has none, nothing is said.
func prefer(link reached, rec leaseFile, before *dhcp.Lease) {
	if rec.Protocol != dhcp.DHCPv6 || preferred(rec.Lease) == dhcp.Forever && preferred(before) == dhcp.Forever {
		return
	}
	have, err := rtnl.Addrs(link.NS, link.Index)
	for _, h := range have {
		for _, a := range rec.Lease.Addresses {
			if a.Prefix != h.Prefix || h.Tentative || h.Dynamic {
				continue
			}
			left := time.Duration(-1)
			if a.Preferred > 0 && a.Preferred < a.Valid {
				left = max(time.Until(rec.Lease.Asked.Add(a.Preferred)), 0)
			}
			if e := rtnl.PreferAddr(link.NS, link.Index, h, left); e != nil {
				err = e
			}
		}
	}
	if err != nil {
		slog.Warn("the kernel does not know how long an address is preferred", "link", link.Name, "owner",
			rec.Ask.Owner,
			"error", err)
	}
}
