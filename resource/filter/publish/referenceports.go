package publish

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/spec"
)

// ReferencePortsTable returns the table of a family in which the reference's portmap publishes ports.
func ReferencePortsTable(v6 bool) *nft.Table {
	return &nft.Table{Family: nft.Family(v6), Name: "cni_hostport"}
}

// RemoveReferencePorts removes the nftables rules of the reference's portmap for an attachment. Rules that lead to
// addresses of the container on other networks stay.
func RemoveReferencePorts(w *kernel.World, o spec.Owner) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		err := filter.ReferenceNFT(w, func(n *nft.Conn) error {
			t := ReferencePortsTable(v6)
			if there, err := n.HasChain(t, "hostports"); err != nil || !there {
				return err
			}
			keep := sync.OnceValues(func() ([]netip.Addr, error) { return iptables.Survivors(w, IPTablesRecord, o) })
			var gone []xtables.Rule
			for _, chain := range []string{"hostports", "hostip_hostports", "masquerading"} {
				rules, err := xtables.ChainRules(n, t, chain, v6)
				if err != nil {
					return err
				}
				for _, r := range rules {
					if r.Comment != o.ContainerID {
						continue
					}
					others, err := keep()
					if err != nil {
						return err
					}
					to := r.To.Addr()
					if chain == "masquerading" {
						to = r.Dst.Addr()
					}
					if !slices.Contains(others, to) {
						gone = append(gone, r)
					}
				}
			}
			var b nft.Batch
			xtables.RemoveRules(&b, t, gone)
			defer FlushFlows(w, goneFlows(gone, v6))
			return n.Commit(&b)
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
