package advice

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/netconf"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/spec"
)

// GivesBack returns a hint: how the holder that an error names releases what it has.
func GivesBack(doc *spec.Error, attached []attach.Cached) string {
	network, rest, known := strings.Cut(doc.Holder, "/")
	id, ifName, _ := strings.Cut(rest, "/")
	for _, c := range attached {
		if known && c.ContainerID == id && cmp.Or(network, c.Network) == c.Network &&
			cmp.Or(ifName, c.IfName) == c.IfName {
			return letGo(c)
		}
	}
	if hint := doc.ReleaseHint(); hint != "" {
		return "`fairlead ls` knows nothing of " + doc.Holder + ". " + hint
	}
	return ""
}

// Deletes returns the command that deletes an attachment.
func Deletes(o spec.Owner, netns string) string {
	del := fmt.Sprintf("`fairlead del %s %s", o.Network, cmp.Or(netns, "NETNS"))
	if o.ContainerID != attached.ContainerID(netns) {
		del += " --container-id " + o.ContainerID
	}
	if o.IfName != "eth0" {
		del += " -i " + o.IfName
	}
	return del + "`"
}

// letGo says how an attachment releases what it holds.
func letGo(c attach.Cached) string {
	if attached.IsGone(c) {
		return fmt.Sprintf("The network namespace of %s is gone: `fairlead gc %s --gone` removes what it left.",
			c.Owner(),
			c.Network)
	}
	del := Deletes(c.Owner(), c.Netns)
	switch {
	case strings.HasPrefix(c.ContainerID, "cnitool-"):
		return del + " detaches the holder."
	case strings.HasPrefix(c.ContainerID, "run-"):
		return fmt.Sprintf("%s is a `fairlead run`, which releases it at its end.", c.ContainerID)
	}
	return fmt.Sprintf("It is released when the runtime that made %s removes it. If the runtime no longer knows "+
		"it, %s detaches it.", c.ContainerID, del)
}

// reclaimable says how many leases of a network belong to containers that are gone. It returns "" if there are none,
// or if the leases cannot be read, as those of another project's allocator.
func reclaimable(network string) string {
	l, err := spec.Load(netconf.ConfDir(), network)
	if err != nil {
		return ""
	}
	p, err := netconf.PoolOf(l, true)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // others may hold the lock
	defer cancel()
	b, err := p.Ledger.Look(ctx, network)
	if err != nil {
		return ""
	}
	gone := 0
	for _, l := range b.Leases {
		if l.State == ipam.Gone {
			gone++
		}
	}
	if gone == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d leases belong to containers that are gone: `fairlead ipam reclaim %s` removes "+
		"them.", gone,
		len(b.Leases), network)
}
