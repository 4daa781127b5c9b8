package resource

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// Sweep removes, of every kind that carries a tag, what belongs to the network and to none of valid. It
// goes on past an error (clause P22).
func Sweep(ctx context.Context, w *kernel.World, network string, valid []spec.Owner) error {
	owners := make(map[[8]byte]bool, len(valid))
	for _, o := range valid {
		owners[kernel.OwnerHash(o)] = true
	}
	keep := func(owner [8]byte) bool { return owners[owner] }
	// A link that was made and not yet tagged when its maker was killed is known by its name, and where that was chosen
	// by its address.
	untagged := func(l *kernel.Link) bool {
		return slices.ContainsFunc(valid, func(o spec.Owner) bool {
			prefix := max(len(l.Name)-11, 0)
			return kernel.LinkName(l.Name[:prefix], o) == l.Name || bytes.Equal(l.MAC, kernel.MAC("host", o))
		})
	}
	errs := []error{
		SweepNFT(ctx, w, network, keep),
		SweepForward(ctx, w, network, keep),
		SweepIPTables(ctx, w, network, valid),
		SweepLinks(ctx, w, network, keep, untagged),
		sweepContained(w, network, keep),
		sweepBridges(ctx, w, network),
		sweepVRFs(ctx, w, network, keep),
		sweepSources(ctx, w, network, keep), // the links that it puts routes back on may be gone by now
		sweepPolicies(ctx, w, network, keep),
		SweepStages(ctx, w),
		sweepPoliced(ctx, w, network, keep),
		SweepNetwork(ctx, w, network, len(valid) > 0),
		sweepShaped(w, network, keep),
		sweepTunings(w, network, keep),
	}
	// Last, for it is the memory of what the others go by.
	away, err := sweepDevices(ctx, w, network, keep)
	errs = append(errs, err, w.Memory.Sweep(network, func(owner [8]byte) bool { return keep(owner) || away[owner] }))
	return errors.Join(errs...)
}
