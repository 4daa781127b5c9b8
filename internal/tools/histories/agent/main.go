// Command agent takes blocks of addresses out of the grant of a network, and puts blocks into it, in the way of fairlead-agent.
// Histories have it as an actor.
//
//	agent NETWORK -PREFIX,PREFIX… +PREFIX,PREFIX…
package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/ipam/disk"
	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// run goes on after an error, as the agent does.
func run(network string, actions []string) (err error) {
	file, leases := &grant.File{Network: network}, &disk.Store{}
	for _, action := range actions {
		var block []netip.Prefix
		for text := range strings.SplitSeq(action[1:], ",") {
			block = append(block, netip.MustParsePrefix(text))
		}
		without := func(g *grant.Grant) {
			g.Ranges = slices.DeleteFunc(g.Ranges, func(p netip.Prefix) bool { return slices.Contains(block, p) })
		}
		if action[0] == '+' {
			err = errors.Join(err, file.Change(func(g *grant.Grant) {
				without(g)
				g.Ranges = append(g.Ranges, block...)
			}))
			continue
		}
		_, werr := leases.Withdraw(context.Background(), network, block, func() error { return file.Change(without) })
		err = errors.Join(err, werr)
	}
	return err
}
