package filter

import (
	"context"
	"net"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/identity"
	"github.com/fairlead-cni/fairlead/kernel/nft"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/spec"
)

// final is s as the final result has it: frames with another address than the container's are what it drops.
func (s SpoofCheck) final(f spec.Interface) plan.Resource {
	s.MAC = f.MAC
	return s
}

// Traits implements resource.Describer.
func (s SpoofCheck) Traits() resource.Traits {
	return resource.Traits{Effect: resource.Closes, Final: s.final}
}

// A SpoofCheck drops what comes in by Link, the host end of a container on a bridge, under another source
// address than MAC.
type SpoofCheck struct {
	Owner spec.Owner
	Link  string // the host end
	MAC   string
}

func (s SpoofCheck) String() string {
	return resource.Line("spoofcheck", resource.Opt("iifname", s.Link), resource.Opt("ether saddr !=", s.MAC), "drop")
}

// Ensure implements plan.Resource.
func (s SpoofCheck) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	err = withFilter(ctx, w, bridgeTable(), func(f filter) error {
		want, err := s.want(f.t)
		if err != nil {
			return err
		}
		if err := f.ensureBase(newChainSet(f.t)); err != nil {
			return err
		}
		changed, err = f.applyElements(s.Owner, kindSpoofCheck, want)
		return err
	})
	return changed && err == nil, err
}

// SpoofChecked reports whether an owner's frames are dropped that are not from the MAC that its container began with.
func SpoofChecked(ctx context.Context, w *kernel.World, o spec.Owner) (is bool) {
	_ = withFilter(ctx, w, bridgeTable(), func(f filter) error {
		have, err := f.entries(identity.OwnerHash(o), kindSpoofCheck)
		is = err == nil && len(have) > 0
		return nil // without the table nobody checks
	})
	return is
}

// Verify implements plan.Resource.
func (s SpoofCheck) Verify(ctx context.Context, w *kernel.World) error {
	return withFilter(ctx, w, bridgeTable(), func(f filter) error {
		want, err := s.want(f.t)
		if err != nil {
			return err
		}
		return f.verify(newChainSet(f.t), s.Owner, kindSpoofCheck, want)
	})
}

// Remove implements plan.Remover. It needs only the owner.
func (s SpoofCheck) Remove(ctx context.Context, w *kernel.World) error {
	return SpoofCheckKind().Remove(ctx, w, plan.TagOf(s.Owner))
}

// want is two elements: that Link is guarded, and what may come from it.
func (s SpoofCheck) want(t *nft.Table) ([]nft.Elem, error) {
	mac, err := net.ParseMAC(s.MAC)
	if err != nil || len(mac) != 6 || s.Link == "" || len(s.Link) > 15 {
		return nil, spec.Errorf(spec.CodeConfig, "spoof check of link %q, address %q: want a link's name and 6 bytes", s.Link,
			s.MAC)
	}
	links, pairs := spoofSets(t)
	return []nft.Elem{
		{Set: links, Key: nft.Key(s.Link), Comment: tagOf(s.Owner)},
		{Set: pairs, Key: nft.Key(s.Link, mac), Comment: tagOf(s.Owner)},
	}, nil
}
