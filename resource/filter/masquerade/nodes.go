package masquerade

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/ipam/grant"
	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/plan"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// Nodes are the prefixes of the containers of all nodes of a cluster, in two sets of our nf_tables table that the rules
// of Sources ask. They belong to no attachment: the agent of the cluster keeps them. An ADD that finds its own prefix
// missing there takes the prefixes from the grant.
type Nodes struct {
	Network  string
	Prefixes []netip.Prefix // no two of which overlap
}

func (n Nodes) String() string {
	return resource.Line("masquerade", "network "+n.Network, resource.Prefixes("daddr !=", n.Prefixes))
}

// Traits implements resource.Describer.
func (n Nodes) Traits() resource.Traits { return resource.Traits{Object: n.Network} }

// sets returns a part of the table that is the two sets.
func (n Nodes) sets(t *nft.Table) *filter.ChainSet {
	part := filter.NewChainSet(t)
	for _, v6 := range []bool{false, true} {
		part.Sets = append(part.Sets, filter.NodesSet(t, v6, n.Network))
	}
	return part
}

// Ensure implements plan.Resource. It makes the table if there is none, and changes only the elements that differ.
func (n Nodes) Ensure(ctx context.Context, w *kernel.World) (changed bool, err error) {
	err = filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		if err := f.EnsureBase(n.sets(f.Table)); err != nil {
			return err
		}
		changed, err = n.apply(f)
		return err
	})
	return changed && err == nil, err
}

// apply makes the elements of the sets those of the prefixes.
func (n Nodes) apply(f filter.Tx) (changed bool, err error) {
	missing, surplus, err := n.compare(f)
	if err != nil {
		return false, err
	}
	var b nft.Batch
	for _, e := range slices.Concat(surplus...) { // first, because a new prefix may overlap a former one
		b.Delete(e)
	}
	for _, e := range slices.Concat(missing...) {
		b.Add(e)
	}
	return !b.Empty(), f.Write(&b)
}

// compare returns the intervals that the sets lack, and those that they should not have. A set that does not exist is
// ENOENT.
func (n Nodes) compare(f filter.Tx) (missing, surplus []nft.Bounds, err error) {
	for _, v6 := range []bool{false, true} {
		set := filter.NodesSet(f.Table, v6, n.Network)
		elements, err := f.List(set)
		if err != nil {
			return nil, nil, err
		}
		if elements == nil {
			return nil, nil, unix.ENOENT
		}
		var want []nft.Bounds
		for _, p := range filter.OfFamily(n.Prefixes, v6) {
			want = append(want, set.Prefix(p))
		}
		have := nft.Intervals(elements)
		missing = append(missing, without(want, have)...)
		surplus = append(surplus, without(have, want)...)
	}
	return missing, surplus, nil
}

// without returns the intervals of one list that the other has not.
func without(list, other []nft.Bounds) (rest []nft.Bounds) {
	has := map[string]bool{}
	for _, b := range other {
		has[b.ID()] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(b nft.Bounds) bool { return has[b.ID()] })
}

// Verify implements plan.Resource.
func (n Nodes) Verify(ctx context.Context, w *kernel.World) error {
	return filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		drift, err := f.Standing(n.sets(f.Table))
		if err != nil || len(drift) > 0 {
			return errors.Join(err, drift.Err())
		}
		missing, surplus, err := n.compare(f)
		if err != nil {
			return err
		}
		for _, b := range missing {
			drift.Add(spec.Missing("nft element " + b[0].String()))
		}
		for _, b := range surplus {
			drift.Add(spec.TooMuch("nft element " + b[0].String()))
		}
		return drift.Err()
	})
}

// Remove implements plan.Remover. It empties the sets, and leaves them to the rules that ask them.
func (n Nodes) Remove(ctx context.Context, w *kernel.World) error {
	n.Prefixes = nil
	return filter.Transact(ctx, w, filter.Inet(), func(f filter.Tx) error {
		names, err := f.SetNames(f.Table)
		exists := func(s *nft.Set) bool { return slices.Contains(names, s.Name) }
		if err != nil || !slices.ContainsFunc(n.sets(f.Table).Sets, exists) {
			return err
		}
		_, err = n.apply(f)
		return err
	})
}

var _ plan.Remover = Nodes{}

// granted returns the prefixes of all nodes of the cluster that a network belongs to, as the grant of this boot says.
func granted(network string) []netip.Prefix {
	g, err := grant.OfBoot(network)
	if err != nil {
		return nil
	}
	return g.Prefixes
}

// fillNodes gives the sets of the network the prefixes of the grant, and m's own, if they lack m's own.
func (m Sources) fillNodes(f filter.Tx) (bool, error) {
	missing, err := m.missingNodes(f)
	if err != nil || len(missing) == 0 {
		return false, err
	}
	prefixes := granted(m.Owner.Network)
	for _, own := range m.From {
		holds := func(p netip.Prefix) bool { return p.Contains(own.Addr()) }
		switch {
		case slices.ContainsFunc(prefixes, holds):
		case slices.ContainsFunc(prefixes, own.Overlaps): // of a pool of single addresses, which other nodes have
			prefixes = append(prefixes, filter.Single(own.Addr()))
		default:
			prefixes = append(prefixes, own.Masked())
		}
	}
	return Nodes{Network: m.Owner.Network, Prefixes: prefixes}.apply(f)
}

// missingNodes returns an element for each of m's own addresses that the prefixes of the cluster lack. A pinned address
// is a prefix by itself.
func (m Sources) missingNodes(f filter.Tx) (missing []nft.Elem, err error) {
	if !m.Cluster {
		return nil, nil
	}
	var ask []nft.Elem
	for _, p := range m.From {
		set := filter.NodesSet(f.Table, p.Addr().Is6(), m.Owner.Network)
		ask = append(ask, set.Prefix(p)[0], set.Prefix(filter.Single(p.Addr()))[0])
	}
	found, err := f.Get(ask...)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(ask); i += 2 {
		if found[i] == nil && found[i+1] == nil {
			missing = append(missing, ask[i])
		}
	}
	return missing, nil
}
