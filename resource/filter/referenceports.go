package filter

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

func ReferencePortsTable(v6 bool) *kernel.NFTTable {
	return &kernel.NFTTable{Family: kernel.NFProto(v6), Name: "cni_hostport"}
}

// RemoveReferencePorts removes what the reference's portmap has for an attachment in nftables. What leads to addresses
// that the container has on other networks stays.
func RemoveReferencePorts(w *kernel.World, o spec.Owner) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		err := ReferenceNFT(w, func(n *kernel.NFT) error {
			t := ReferencePortsTable(v6)
			if there, err := n.HasChain(t, "hostports"); err != nil || !there {
				return err
			}
			var keep []netip.Addr
			var flows []kernel.UDPFlow
			var b kernel.NFTBatch
			for _, chain := range []string{"hostports", "hostip_hostports", "masquerading"} {
				rules, err := n.ChainRules(t, chain, v6)
				if err != nil {
					return err
				}
				rules = slices.DeleteFunc(rules, func(r kernel.IPTRule) bool { return r.Comment != o.ContainerID })
				if len(rules) > 0 && keep == nil {
					if keep, err = survivors(w, IPTPublishedRecord, o); err != nil {
						return err
					}
				}
				rules = slices.DeleteFunc(rules, func(r kernel.IPTRule) bool {
					return slices.Contains(keep, r.To.Addr()) || chain == "masquerading" && slices.Contains(keep, r.Dst.Addr())
				})
				b.RemoveRules(t, rules)
				for _, r := range rules {
					if r.Jump == "DNAT" && r.Proto == "udp" && len(r.Ports) == 1 {
						flows = append(flows, kernel.UDPFlow{Host: anyAddr(v6), Port: r.Ports[0][0], To: r.To, Gone: true})
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

// ReferenceNFT runs fn, and again where somebody was faster. A kernel without nf_tables has nothing to remove.
func ReferenceNFT(w *kernel.World, fn func(*kernel.NFT) error) error {
	n, err := w.Host.NFT()
	if err == nil {
		if err = fn(n); errors.Is(err, unix.ENOENT) {
			err = fn(n)
		}
	}
	if unavailable(err) {
		return nil
	}
	return err
}
