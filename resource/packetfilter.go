package resource

import (
	"context"

	"github.com/fairlead-cni/fairlead/kernel"
)

type PacketFilter struct{}

func (PacketFilter) String() string                                       { return "nf_tables" }
func (PacketFilter) Ensure(context.Context, *kernel.World) (bool, error) { return false, nil }
func (PacketFilter) Verify(context.Context, *kernel.World) error         { return nil }
