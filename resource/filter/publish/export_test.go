package publish

import (
	"context"

	"github.com/fairlead-cni/fairlead/kernel"
)

// ConflictsWithNFT is the look at our table that Open begins with.
func (p PortsIPTables) ConflictsWithNFT(ctx context.Context, w *kernel.World) error {
	return p.conflictsWithNFT(ctx, w)
}

// SpansText are the ports of the host that the mappings come to, in IPv4.
func SpansText(list []Mapping) (text []string, err error) {
	all, err := spans(list, false)
	for _, s := range all {
		text = append(text, portsText(s.first, s.last))
	}
	return text, err
}
