package reference

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/internal/kernel/nft"
	"github.com/fairlead-cni/fairlead/internal/kernel/xtables"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/kernel/rtnl"
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/filter"
	"github.com/fairlead-cni/fairlead/resource/filter/iptables"
	"github.com/fairlead-cni/fairlead/resource/filter/publish"
	"github.com/fairlead-cni/fairlead/spec"
	"golang.org/x/sys/unix"
)

// What the reference plugins made carries no tag of ours. DEL asks for its names one by one, by netlink, and
// removes what is there for the attachment, so that a host can change over with its containers alive. What the
// reference made by iptables has the names of our own iptables backends, whose Remove finds it.

// Ports is what the reference's portmap makes for an attachment in nftables: rules of tables ip and ip6 cni_hostport.
// They carry only the container's ID.
type Ports struct {
	Owner   spec.Owner
	Publish *publish.Ports // to make them, for a handover
}

func (f Ports) String() string {
	if f.Publish != nil {
		return "the reference's nft rules in cni_hostport: " + f.Publish.String()
	}
	return "no nft rules of the reference in ip and ip6 cni_hostport"
}

// Remove implements plan.Remover. Rules that lead to the container's addresses on other networks stay.
func (f Ports) Remove(_ context.Context, w *kernel.World) error {
	return publish.RemoveReferencePorts(w, f.Owner)
}

// Masquerade is what the reference's bridge and ptp make for an attachment in nftables: rules of table inet
// cni_plugins_masquerade.
type Masquerade struct {
	Owner spec.Owner
	From  []netip.Prefix // to make them, for a handover
}

func (f Masquerade) String() string {
	if len(f.From) > 0 {
		return "the reference's nft rules in cni_plugins_masquerade: " + resource.Prefixes("saddr", f.From)
	}
	return "no nft rules of the reference in inet cni_plugins_masquerade"
}

func referenceMarkHash(text string) string { return resource.HashDigits(text, 16) }

// referenceMark is how the reference's comments on an attachment's masquerading begin.
func referenceMark(o spec.Owner) string {
	return referenceMarkHash(o.Network) + "-" + referenceMarkHash(o.IfName+":"+o.ContainerID)
}

// Remove implements plan.Remover.
func (f Masquerade) Remove(_ context.Context, w *kernel.World) error {
	return eachReferenceMasquerade(w, func(mark string) bool { return mark == referenceMark(f.Owner) })
}

// eachReferenceMasquerade removes the rules whose mark is to go.
func eachReferenceMasquerade(w *kernel.World, which func(mark string) bool) error {
	return filter.ReferenceNFT(w, func(n *nft.Conn) error {
		t := &nft.Table{Family: unix.NFPROTO_INET, Name: "cni_plugins_masquerade"}
		rules, err := xtables.ChainRules(n, t, "masq_checks", false)
		if err != nil {
			return err
		}
		var b nft.Batch
		xtables.RemoveRules(&b, t, slices.DeleteFunc(rules, func(r xtables.Rule) bool {
			mark, _, ok := strings.Cut(r.Comment, ",")
			return !ok || !which(mark)
		}))
		return n.Commit(&b)
	})
}

// SpoofCheck is what the reference's bridge makes for an attachment with macspoofchk: two chains in table bridge nat,
// and the rules that jump to them.
type SpoofCheck struct {
	Owner     spec.Owner
	Link, MAC string // to make them, for a handover
}

func (f SpoofCheck) String() string {
	if f.Link != "" {
		return "the reference's nft chains in bridge nat: " +
			resource.Line(resource.Opt("iifname", f.Link), resource.Opt("ether saddr !=", f.MAC), "drop")
	}
	return "no nft chains of the reference in bridge nat"
}

// Remove implements plan.Remover.
func (f SpoofCheck) Remove(_ context.Context, w *kernel.World) error {
	return filter.ReferenceNFT(w, func(n *nft.Conn) error {
		t := &nft.Table{Family: unix.NFPROTO_BRIDGE, Name: "nat"}
		chain := "cni-br-iface-" + f.Owner.ContainerID + "-" + f.Owner.IfName
		there, err := n.HasChain(t, chain)
		if err != nil || !there {
			return err
		}
		rules, err := xtables.ChainRules(n, t, "PREROUTING", false)
		if err != nil {
			return err
		}
		var b nft.Batch
		xtables.RemoveRules(&b, t, slices.DeleteFunc(rules, func(r xtables.Rule) bool { return r.Jump != chain }))
		b.RemoveChain(t, chain)
		if there, err := n.HasChain(t, chain+"-mac"); err != nil {
			return err
		} else if there {
			b.RemoveChain(t, chain+"-mac")
		}
		return n.Commit(&b)
	})
}

// Firewall is what the reference's firewall makes for addresses in chain CNI-FORWARD, by either variant of iptables:
// one rule accepts packets from each address, and one accepts the answers. The rules carry no owner.
type Firewall struct {
	Owner spec.Owner
	Addrs []netip.Addr // none: those of the container's interface, as long as it is there, or of its lease
	Admin string       // the administrator's chain, to make them, for a handover
}

func (f Firewall) String() string {
	if f.Admin != "" {
		return resource.Line("the reference's iptables rules in CNI-FORWARD", resource.Addrs("for", f.Addrs))
	}
	return resource.Line("no iptables rules of the reference in CNI-FORWARD", resource.Addrs("for", f.Addrs))
}

// Remove implements plan.Remover.
func (f Firewall) Remove(ctx context.Context, w *kernel.World) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		all, err := iptables.Having(w, v6, "filter", iptables.ChainForward)
		errs = append(errs, err)
		if len(all) == 0 {
			continue
		}
		if f.Addrs == nil {
			f.Addrs = f.lookUp(w)
		}
		// a late DEL must not hit who has the address by now
		f.Addrs = slices.DeleteFunc(slices.Clone(f.Addrs), f.isReassigned)
		for _, x := range all {
			errs = append(errs, iptables.WithLock(ctx, func(ctx context.Context) error {
				rules, err := x.List(ctx, iptables.ChainForward)
				if err != nil {
					return err
				}
				return x.Remove(ctx, slices.DeleteFunc(rules,
					func(r xtables.Rule) bool { return r.Jump != "ACCEPT" || r.Comment != "" || !f.names(r) }), nil)
			}))
		}
	}
	return errors.Join(errs...)
}

// names reports whether a rule is for one address alone, and that is ours.
func (f Firewall) names(r xtables.Rule) bool {
	for _, p := range []netip.Prefix{r.Src, r.Dst} {
		if p.IsValid() && p.IsSingleIP() && slices.Contains(f.Addrs, p.Addr()) {
			return !(r.Src.IsValid() && r.Dst.IsValid())
		}
	}
	return false
}

// isReassigned reports whether host-local has given an address to another container since.
func (f Firewall) isReassigned(a netip.Addr) bool {
	id, _, leased := lease(f.Owner.Network, a)
	return leased && id != f.Owner.ContainerID
}

// lookUp finds the addresses if the caller has given none.
func (f Firewall) lookUp(w *kernel.World) (all []netip.Addr) {
	if w.Container == nil {
		return leasedTo(f.Owner)
	}
	l, err := rtnl.LinkByName(w.Container, f.Owner.IfName)
	if err != nil {
		return leasedTo(f.Owner)
	}
	list, _ := rtnl.Addrs(w.Container, l.Index)
	for _, a := range list {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			all = append(all, a.Prefix.Addr())
		}
	}
	return all
}
