package v4

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/fairlead-cni/fairlead/internal/kernel/packet"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"

	"github.com/fairlead-cni/fairlead/internal/dhcp"
)

// errTaken says that another host has the address that a server gave.
var errTaken = errors.New("another machine on the link has it")

// The spans of the question whether an address is free: twice, and as short as one machine may take to answer another.
// The interface plugin asks again, and for longer; but it cannot tell the server, which would give the same address
// again.
const (
	probeCount = 2
	probePause = 200 * time.Millisecond
)

// free asks by ARP whether another host has an address (RFC 2131, 4.4.1), and is errTaken where one does.
func free(ctx context.Context, l dhcp.Link, addr netip.Addr) error {
	kl, err := rtnl.LinkByIndex(l.NS, l.Index)
	if err != nil {
		return err
	}
	n, err := packet.ListenNeighbours(l.NS, kl, false)
	if err != nil {
		return err
	}
	defer func() { go n.Close() }() // which waits for a grace period
	for range probeCount {
		if err := n.Ask(addr); err != nil {
			return err
		}
		for until := time.Now().Add(probePause); ; {
			c, ok, err := n.Next(ctx, until)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if c.Addr == addr {
				return fmt.Errorf("link %s: address %v, which the server offered: %w: %v",
					l.Name, addr, errTaken, c.MAC)
			}
		}
	}
	return nil
}
