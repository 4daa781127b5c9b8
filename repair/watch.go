package repair

import (
	"context"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/sdk"
	"golang.org/x/sys/unix"
)

// A reload is many transactions: it is over when the kernel has been quiet for so long, and after most it is not
// waited any longer.
const (
	quiet = 50 * time.Millisecond
	most  = 500 * time.Millisecond
)

// Watch repairs, and then again whenever somebody else takes away rules that are ours, or reloads those that decide
// beside them, until ctx ends. Done is called after each repair. Who takes single elements out of our sets is not
// noticed: that is what each DEL does.
func (r *Repairer) Watch(ctx context.Context, done func(*Report, error)) error {
	host, err := sdk.OpenHost()
	if err != nil {
		return err
	}
	defer host.Close()
	events, err := nft.Watch(host.Host)
	if err != nil {
		return err
	}
	defer events.Close()
	for {
		report, err := r.on(ctx, host)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		done(report, err)
		for touched := false; !touched; {
			changes, err := events.Next(ctx, 0)
			if err != nil {
				return err
			}
			touched = slices.ContainsFunc(changes, disturbs)
		}
		for start := time.Now(); time.Since(start) < most; {
			changes, err := events.Next(ctx, quiet)
			if err != nil {
				return err
			}
			if len(changes) == 0 {
				break
			}
		}
	}
}

// disturbs reports whether a change may have taken away what attachments have.
func disturbs(c nft.Change) bool {
	if c == (nft.Change{}) {
		return true // some were lost
	}
	gone := slices.Contains([]uint16{unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE,
		unix.NFT_MSG_DELSET}, c.Op)
	switch c.Table {
	case "fairlead":
		return gone && c.Chain != "user" // which is the administrator's
	case "filter": // of iptables: what decides about forwarding
		return c.Chain == "" || c.Chain == "FORWARD" || gone && c.Chain != "" && len(c.Chain) > 4 &&
			c.Chain[:4] == "CNI-"
	}
	return c.Op == unix.NFT_MSG_DELTABLE || c.Op == unix.NFT_MSG_NEWTABLE || gone && c.Table == "firewalld" &&
		c.Op == unix.NFT_MSG_DELCHAIN
}
