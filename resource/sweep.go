package resource

import (
	"context"
	"errors"

	"github.com/fairlead-cni/fairlead/kernel"
)

// SweepLinks removes the links on the host that carry the mark of the network and whose owner keep does
// not want. A link without a tag, of an ADD that was killed before it wrote one, is asked about by name.
func SweepLinks(ctx context.Context, w *kernel.World, network string, keep func(owner [8]byte) bool, keepName func(name string) bool) error {
	return errors.ErrUnsupported
}
