package spoof

import (
	"context"
	"net"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// final is s as the final result has it: frames with another address than the container's are what it drops.
func (s Check) final(f spec.Interface) plan.Resource {
	s.MAC = f.MAC
	return s
}

// Traits implements resource.Describer.
func (s Check) Traits() resource.Traits {
	return resource.Traits{Effect: resource.Closes, Final: s.final,
		Network: resource.Network{Marks: []string{"MAC check"}}}
}

// A Check drops frames that arrive on Link with a source address other than MAC. Link is the host-side interface of a
// container on a bridge.
type Check struct {
	Owner spec.Owner
	Link  string // the host end
	MAC   string
}

func (s Check) String() string {
	return resource.Line("spoofcheck", resource.Opt("iifname", s.Link), resource.Opt("ether saddr !=", s.MAC), "drop")
}

// Ensure implements plan.Resource.
func (s Check) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	err = filter.Transact(ctx, w, filter.Bridge(), func(f filter.Tx) error {
		want, err := s.want(f.Table)
		if err != nil {
			return err
		}
		if err := f.EnsureBase(filter.NewChainSet(f.Table)); err != nil {
			return err
		}
		changed, err = f.ApplyElements(identity.OwnerHash(s.Owner), filter.KindSpoofCheck, want...)
		return err
	})
	return changed && err == nil, err
}

// Checked reports whether an owner's frames are checked, so that only those from the container's first MAC address
// pass.
func Checked(ctx context.Context, w *kernel.World, o spec.Owner) (is bool) {
	_ = filter.Transact(ctx, w, filter.Bridge(), func(f filter.Tx) error {
		have, err := f.Entries(identity.OwnerHash(o), filter.KindSpoofCheck)
		is = err == nil && len(have) > 0
		return nil // without the table there is no check
	})
	return is
}

// Verify implements plan.Resource.
func (s Check) Verify(ctx context.Context, w *kernel.World) error {
	return filter.Transact(ctx, w, filter.Bridge(), func(f filter.Tx) error {
		want, err := s.want(f.Table)
		if err != nil {
			return err
		}
		return f.Verify(filter.NewChainSet(f.Table), s.Owner, filter.KindSpoofCheck, want)
	})
}

// Remove implements plan.Remover. It needs only the owner.
func (s Check) Remove(ctx context.Context, w *kernel.World) error {
	return Kind().Remove(ctx, w, plan.TagOf(s.Owner))
}

// want is two elements: that Link is guarded, and what may come from it.
func (s Check) want(t *nft.Table) ([]nft.Elem, error) {
	mac, err := net.ParseMAC(s.MAC)
	if err != nil || len(mac) != 6 || s.Link == "" || len(s.Link) > 15 {
		return nil, spec.Errorf(spec.CodeConfig, "spoof check of link %q, address %q: want a link's name and 6 bytes",
			s.Link,
			s.MAC)
	}
	links, pairs := filter.SpoofSets(t)
	return []nft.Elem{
		filter.Owned(s.Owner, links, s.Link),
		filter.Owned(s.Owner, pairs, s.Link, mac),
	}, nil
}

// Kind returns the Kind of Check.
func Kind() plan.Kind { return filter.NewKind("MAC check", filter.Bridge, filter.KindSpoofCheck) }
