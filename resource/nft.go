package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
)

// SweepNFT removes what the network's attachments left in the packet filter, of every owner that keep
// does not want.
func SweepNFT(ctx context.Context, w *kernel.World, network string, keep func(owner [8]byte) bool) error {
	return errors.ErrUnsupported
}
