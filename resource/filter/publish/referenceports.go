package publish

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/internal/kernel/conntrack"
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
			var keep []netip.Addr
			var flows []conntrack.UDPFlow
			var b nft.Batch
			for _, chain := range []string{"hostports", "hostip_hostports", "masquerading"} {
				rules, err := xtables.ChainRules(n, t, chain, v6)
				if err != nil {
					return err
				}
				rules = slices.DeleteFunc(rules, func(r xtables.Rule) bool { return r.Comment != o.ContainerID })
				if len(rules) > 0 && keep == nil {
					if keep, err = iptables.Survivors(w, IPTablesRecord, o); err != nil {
						return err
					}
				}
				rules = slices.DeleteFunc(rules, func(r xtables.Rule) bool {
					return slices.Contains(keep, r.To.Addr()) || chain == "masquerading" &&
						slices.Contains(keep, r.Dst.Addr())
				})
				xtables.RemoveRules(&b, t, rules)
				for _, r := range rules {
					if r.Jump == "DNAT" && r.Proto == "udp" && len(r.Ports) == 1 {
						flows = append(flows, conntrack.UDPFlow{Host: anyAddr(v6), Port: r.Ports[0][0], To: r.To,
							Gone: true})
					}
				}
			}
			defer FlushFlows(w, flows)
			return n.Commit(&b)
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
