package daemon

import (
	"log/slog"
	"time"

	"github.com/fairlead-cni/fairlead/kernel/rtnl"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
)

// settling limits how long an interface plugin may take to add the addresses of a new lease to the link.
const settling = 3 * time.Second

// preferred returns when the first address of a lease stops being preferred, counted from Asked, or Forever if that is
// not before the lease expires.
func preferred(l *dhcp.Lease) time.Duration {
	first := dhcp.Forever
	for _, a := range l.Addresses {
		if a.Preferred > 0 && a.Preferred < a.Valid {
			first = min(first, a.Preferred)
		}
	}
	return first
}

// prefer tells the kernel how long the addresses of a lease on the link are preferred (RFC 4862, 5.5.4). The kernel
// then deprecates them in time, even if no server answers or no daemon runs. The daemon removes the addresses when the
// lease expires; the kernel does not. Addresses that the kernel makes (SLAAC) get their times from the router. For an
// address that has and had no such time, nothing is changed.
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
		slog.Warn("the preferred lifetime of an address could not be set", "link", link.Name, "owner",
			rec.Ask.Owner,
			"error", err)
	}
}
