package resource

import (
	"context"
	"net/netip"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// A Passage is a host where what Forward needs is there, and where others' rules do not drop whatever a container
// might send. It is what STATUS can know without a container.
type Passage struct{ Backend string }

func (p Passage) String() string { return line("passage", opt("by", p.Backend)) }

// Ensure implements plan.Resource: it is there or not.
func (p Passage) Ensure(ctx context.Context, w *kernel.World) (bool, error) {
	return false, p.Verify(ctx, w)
}

// Verify implements plan.Resource.
func (p Passage) Verify(ctx context.Context, w *kernel.World) error {
	var d drift
	f := Forward{Backend: p.Backend, Addrs: []netip.Addr{netip.IPv4Unspecified()}}
	y, err := f.decide(ctx, w)
	if err != nil {
		return err
	}
	for _, t := range y.V4 {
		d.add(t.Installed())
	}
	skip := ourTables()
	if p.Backend == BackendAuto || p.Backend == BackendIPTables {
		for _, t := range append(y.V4, y.V6...) { // where the accepts will be
			if t.Variant == kernel.IPTNFT {
				skip = append(skip, ip(t.V6)+" filter")
			}
		}
	}
	if y.Firewalld {
		skip = append(skip, "inet firewalld")
		d.add(firewalldAnswers(ctx))
	}
	if !y.Foreign {
		return d.err()
	}
	for _, v6 := range []bool{false, true} {
		v, err := everything(w, v6, skip)
		if err != nil {
			return err
		}
		if v.Outcome == kernel.Dropped {
			d.add(spec.Errorf(spec.CodeUnavailable, "what containers send is %v; %s", v, f.advice(v)))
		}
	}
	return d.err()
}

// everything is what becomes of packets to anywhere: those to a public address and those to a private one have to meet
// with the same.
func everything(w *kernel.World, v6 bool, skip []string) (v kernel.Verdict, err error) {
	to := []string{"192.0.2.1", "10.255.255.254"}
	if v6 {
		to = []string{"2001:db8::1", "fdff:ffff::1"}
	}
	for _, a := range to {
		if v, err = w.Host.Forwarded(kernel.Packet{Dst: netip.MustParseAddr(a)}, skip...); err != nil || v.Outcome != kernel.Dropped {
			break
		}
	}
	return v, err
}
