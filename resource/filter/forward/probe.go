package forward

import (
	"context"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource"
)

// A Probe is a host where what Forward needs is there. It is what STATUS can know without a container; of chains
// of others that may drop whatever a container sends it warns.
type Probe struct{ Backend string }

func (p Probe) String() string { return resource.Line("passage", resource.Opt("by", p.Backend)) }

// Ensure implements plan.Resource: it is there or not.
func (p Probe) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, p.Verify(ctx, w)
}

// Verify implements plan.Resource.
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
