package repair

import (
	"context"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/restore"
	"golang.org/x/sys/unix"
)

// A reload consists of many transactions. Watch waits until none has come for the duration quiet, but no longer than
// most.
const (
	quiet = 50 * time.Millisecond
	most  = 500 * time.Millisecond
)

// Watch repairs, and repairs again when another program removes Fairlead's rules or reloads rules that decide beside
// them, until ctx ends. Done is called after each repair. Watch ignores the removal of single set elements, because
// each DEL does that.
func (r *Repairer) Watch(ctx context.Context, done func(*Report, error)) error {
	host, err := restore.OpenHost()
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

// disturbs reports whether a change may have removed rules of attachments.
func disturbs(c nft.Change) bool {
	if c == (nft.Change{}) {
		return true // some events were lost
	}
	gone := slices.Contains([]uint16{unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE,
		unix.NFT_MSG_DELSET}, c.Op)
	switch c.Table {
	case "fairlead":
		return gone && c.Chain != "user" // the chain user belongs to the administrator
	case "filter": // chains of iptables that decide about forwarding
		return c.Chain == "" || c.Chain == "FORWARD" || gone && c.Chain != "" && len(c.Chain) > 4 &&
			c.Chain[:4] == "CNI-"
	}
	return c.Op == unix.NFT_MSG_DELTABLE || c.Op == unix.NFT_MSG_NEWTABLE || gone && c.Table == "firewalld" &&
		c.Op == unix.NFT_MSG_DELCHAIN
}
