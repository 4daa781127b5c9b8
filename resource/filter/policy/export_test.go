package policy

import (
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/spec"
)

// RemoveProhibitions removes the routing rules that a network has for its link.
func RemoveProhibitions(w *kernel.World, network spec.Owner) error {
	return removeProhibitions(w, failClosedTag(network, filter.KindNetwork))
}
