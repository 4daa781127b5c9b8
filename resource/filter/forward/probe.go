package forward

import (
	"context"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
)

// A Probe requires that the host has what Forward needs. This is what STATUS can verify without a container. A Probe
// also warns of chains of other programs that may drop packets from any container.
type Probe struct{ Backend string }

func (p Probe) String() string { return resource.Line("passage", resource.Opt("by", p.Backend)) }

// Verify implements plan.Requirement.
func (p Probe) Verify(ctx context.Context, w *kernel.World) error {
	f := Forward{Backend: p.Backend, Addrs: []netip.Addr{netip.IPv4Unspecified()}}
	if p.Backend != IPTables { // a host may do without ip6tables
		f.Addrs = append(f.Addrs, netip.IPv6Unspecified())
	}
	b, err := f.decide(ctx, w)
	if err != nil {
		return err
	}
	var d resource.Drift
	for _, t := range b.tables(w, netip.IPv4Unspecified()) {
		d.Add(t.Installed())
	}
	if b.Firewalld {
		d.Add(firewalldAnswers(ctx))
	}
	f.warn(w, b)
	return d.Err()
}
