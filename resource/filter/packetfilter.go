package filter

import (
	"context"
	"fmt"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/kernel"
)

// A PacketFilter requires a kernel with nf_tables. Publishing, masquerading and the spoof check need it.
type PacketFilter struct{}

func (PacketFilter) String() string { return "nf_tables" }

// Verify implements plan.Requirement.
func (PacketFilter) Verify(_ context.Context, w *kernel.World) error {
	conn, err := nft.Open(w.Host)
	if err == nil {
		err = conn.Supported(InetNamed())
	}
	if err != nil {
		return fmt.Errorf("the kernel does not answer for nf_tables (modules nf_tables and nfnetlink; it takes "+
			"CAP_NET_ADMIN): %w",
			err)
	}
	return nil
}
